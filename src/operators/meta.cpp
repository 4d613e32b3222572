// The Meta kernels: the shapes and dtypes of the results, with symbolic sizes.
#include "../dispatch/dispatcher_kernel.h"
#include "checks.h"
#include "gate_gradients.h"
#include "gradient_index.h"
#include "outputs.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/SymInt.h>
#include <torch/library.h>

namespace lltm {
namespace {

using at::Tensor;

Tensor empty(at::SymIntArrayRef sizes,
             const Tensor& like,
             std::optional<at::ScalarType> dtype = std::nullopt) {
  return at::empty_symint(sizes, like.options().dtype(dtype.value_or(like.scalar_type())));
}

/// Every gradient has the shape of its argument.
OptionalGradients empty_if_wanted(const std::array<bool, 5>& output_mask,
                                  const Tensor& input,
                                  const Tensor& weights,
                                  const std::array<c10::SymInt, 2>& state,
                                  at::ScalarType cell_dtype) {
  const auto if_wanted = [&](Gradient gradient,
                             at::SymIntArrayRef shape,
                             at::ScalarType dtype) -> std::optional<Tensor> {
    return output_mask[gradient] ? std::optional(empty(shape, input, dtype)) : std::nullopt;
  };
  const auto dtype = input.scalar_type();
  return {if_wanted(kInput, input.sym_sizes(), dtype),
          if_wanted(kWeights, weights.sym_sizes(), dtype),
          if_wanted(kBias, weights.sym_sizes().slice(0, 1), dtype),
          if_wanted(kOldH, state, dtype),
          if_wanted(kOldCell, state, cell_dtype)};
}

std::tuple<Tensor, Tensor, Tensor> forward_meta(const ForwardArguments& arguments) {
  const auto [batch, input_features, state_size] = check<c10::SymInt>(arguments);
  return {empty({batch, state_size}, arguments.input),
          empty({batch, state_size}, arguments.input),
          empty({batch, state_size * 3}, arguments.input)};
}

OptionalGradients backward_meta(const BackwardArguments& arguments,
                                std::array<bool, 5> output_mask) {
  const auto sizes = check<c10::SymInt>(arguments);
  return empty_if_wanted(output_mask,
                         arguments.input,
                         arguments.weights,
                         {sizes.batch, sizes.state_size},
                         arguments.input.scalar_type());
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> sequence_meta(const SequenceArguments& arguments,
                                                                 bool /*reverse*/,
                                                                 bool keep) {
  const auto sizes = check<c10::SymInt>(arguments);
  return empty_outputs(arguments,
                       sizes,
                       keep,
                       [&](at::SymIntArrayRef shape, at::ScalarType dtype) {
                         return empty(shape, arguments.input, dtype);
                       })
      .results();
}

OptionalGradients sequence_backward_meta(const SequenceBackwardArguments& arguments,
                                         bool /*reverse*/,
                                         std::array<bool, 5> output_mask) {
  const auto sizes = check<c10::SymInt>(arguments);
  return empty_if_wanted(output_mask,
                         arguments.input,
                         arguments.weights,
                         {sizes.batch, sizes.state_size},
                         final_cell_dtype(arguments.sequence()));
}

GateGradients sequence_gate_gradients_meta(const SequenceBackwardArguments& arguments,
                                           bool /*reverse*/,
                                           std::array<bool, 2> state_mask) {
  const auto sizes = check<c10::SymInt>(arguments);
  const Tensor& input = arguments.input;
  const auto state_if = [&](bool wanted, at::ScalarType dtype) {
    return if_wanted(wanted, [&] { return empty({sizes.batch, sizes.state_size}, input, dtype); });
  };
  return {empty({sizes.steps, sizes.batch, sizes.state_size * 3}, input),
          state_if(state_mask[0], input.scalar_type()),
          state_if(state_mask[1], final_cell_dtype(arguments.sequence()))};
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, Meta, m) {
  m.impl("forward", dispatcher_kernel<forward_meta, lltm::forward>());
  m.impl("backward", dispatcher_kernel<backward_meta, lltm::backward>());
  m.impl("sequence", dispatcher_kernel<sequence_meta, lltm::sequence>());
  m.impl("sequence_backward", dispatcher_kernel<sequence_backward_meta, lltm::sequence_backward>());
  m.impl("_sequence_gate_gradients",
         dispatcher_kernel<sequence_gate_gradients_meta, sequence_gate_gradients>());
}

}  // namespace lltm
