// The cell as a sequence of one step.
#pragma once

#include "../dispatch/optional_tensor.h"
#include "checks.h"
#include "gradient_index.h"

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace lltm {

/// A tensor of a cell, which may be absent or undefined, as that of a sequence of one step.
inline at::Tensor one_step_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.unsqueeze(0) : tensor;
}
inline std::optional<at::Tensor> one_step_of(const std::optional<at::Tensor>& tensor) {
  return is_given(tensor) ? std::optional(tensor->unsqueeze(0)) : std::nullopt;
}

/// Calls compute() with the arguments of lltm::sequence_backward that are those of lltm::backward.
template <typename Compute>
auto as_one_step(const BackwardArguments& arguments, const Compute& compute) {
  const auto& [grad_h, grad_cell, new_cell, gates, input, weights, bias, old_h] = arguments;
  const at::Tensor cells = new_cell.unsqueeze(0);
  return compute(LltmSequenceBackwardArguments{.grad_output = one_step_of(grad_h),
                                               .grad_h_n = std::nullopt,
                                               .grad_c_n = std::nullopt,
                                               .grad_cells = one_step_of(grad_cell),
                                               .output = cells,  // of the last step, so not read
                                               .cells = cells,
                                               .gates = gates.unsqueeze(0),
                                               .sequence = {.input = input.unsqueeze(0),
                                                            .weights = weights,
                                                            .bias = bias,
                                                            .h0 = old_h,
                                                            .c0 = std::nullopt,
                                                            .lengths = std::nullopt,
                                                            .reset = std::nullopt}});
}

/// The results of lltm::backward from those that compute() returns for these arguments.
template <typename Compute>
OptionalGradients<5> gradients_of_one_step(const BackwardArguments& arguments,
                                           const Compute& compute) {
  OptionalGradients<5> gradients = as_one_step(arguments, compute);
  auto& d_input = std::get<kInput>(gradients);
  if (d_input) {
    d_input = d_input->squeeze(0);
  }
  return gradients;
}

}  // namespace lltm
