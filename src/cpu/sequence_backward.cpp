// lltm::sequence_backward on the CPU.
#include "../checks.h"
#include "../dispatcher_kernel.h"
#include "../gradients.h"
#include "../int64_lengths.h"
#include "aten_sequence.h"
#include "own_sequence.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

namespace lltm::cpu {
namespace {

using at::Tensor;

OptionalGradients sequence_backward(const SequenceBackwardArguments& arguments,
                                    bool reverse,
                                    std::array<bool, 5> output_mask) {
  const auto sizes = check<int64_t>(arguments);
  const auto& [steps, batch, input_features, state_size] = sizes;
  const Tensor &input = arguments.input, &weights = arguments.weights;
  const bool anything_to_do = arguments.any_gradient() && batch * state_size > 0;
  // Our kernels write every element; aten_sequence_backward_out() expects zeros.
  const bool is_own = anything_to_do && has_own_sequence(weights);
  const auto new_if_wanted = [&](Gradient gradient, at::IntArrayRef shape, at::ScalarType dtype) {
    const auto options = input.options().dtype(dtype);
    return !output_mask[gradient] ? Tensor()
           : is_own               ? at::empty(shape, options)
                                  : at::zeros(shape, options);
  };
  const auto dtype = input.scalar_type();
  const SequenceGradients gradients{
      .input = new_if_wanted(kInput, input.sizes(), dtype),
      .weights = new_if_wanted(kWeights, weights.sizes(), dtype),
      .bias = new_if_wanted(kBias, {3 * state_size}, dtype),
      .h0 = new_if_wanted(kH0, {batch, state_size}, dtype),
      .c0 = new_if_wanted(kC0, {batch, state_size}, final_cell_dtype(arguments.sequence()))};
  if (is_own && gradients.any_wanted()) {
    own_sequence_backward_out(gradients, arguments, reverse);
  } else if (anything_to_do && gradients.any_wanted()) {
    aten_sequence_backward_out(gradients, arguments, sizes, reverse);
  }
  return gradients.results();
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CPU, m) {
  m.impl("sequence_backward",
         dispatcher_kernel<with_int64_lengths<sequence_backward>, lltm::sequence_backward>());
}

}  // namespace lltm::cpu
