// The Meta kernels: the shapes and dtypes of the results, with symbolic sizes.
#include "checks.h"
#include "gradient_index.h"

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

struct GradientShapes {
  c10::SymDimVector input;
  c10::SymDimVector state;
  c10::SymInt state_size;
  c10::SymInt input_features;
};

OptionalGradients empty_if_wanted(const std::array<bool, 5>& output_mask,
                                  const GradientShapes& shapes,
                                  const Tensor& like,
                                  at::ScalarType cell_dtype) {
  const auto if_wanted = [&](Gradient gradient,
                             at::SymIntArrayRef shape,
                             at::ScalarType dtype) -> std::optional<Tensor> {
    return output_mask[gradient] ? std::optional(empty(shape, like, dtype)) : std::nullopt;
  };
  const auto dtype = like.scalar_type();
  const c10::SymInt rows = shapes.state_size * 3;
  return {if_wanted(kInput, shapes.input, dtype),
          if_wanted(kWeights, {rows, shapes.state_size + shapes.input_features}, dtype),
          if_wanted(kBias, {rows}, dtype),
          if_wanted(kOldH, shapes.state, dtype),
          if_wanted(kOldCell, shapes.state, cell_dtype)};
}

std::tuple<Tensor, Tensor, Tensor> forward_meta(const Tensor& input,
                                                const Tensor& weights,
                                                const std::optional<Tensor>& bias,
                                                const Tensor& old_h,
                                                const Tensor& old_cell) {
  const auto [batch, input_features, state_size] =
      check<c10::SymInt>(ForwardArguments{input, weights, bias, old_h, old_cell});
  return {empty({batch, state_size}, input),
          empty({batch, state_size}, input),
          empty({batch, state_size * 3}, input)};
}

OptionalGradients backward_meta(const std::optional<Tensor>& grad_h,
                                const std::optional<Tensor>& grad_cell,
                                const Tensor& new_cell,
                                const Tensor& gates,
                                const Tensor& input,
                                const Tensor& weights,
                                const std::optional<Tensor>& bias,
                                const Tensor& old_h,
                                std::array<bool, 5> output_mask) {
  const auto sizes = check<c10::SymInt>(
      BackwardArguments{grad_h, grad_cell, new_cell, gates, input, weights, bias, old_h});
  return empty_if_wanted(output_mask,
                         {.input = {sizes.batch, sizes.input_features},
                          .state = {sizes.batch, sizes.state_size},
                          .state_size = sizes.state_size,
                          .input_features = sizes.input_features},
                         input,
                         input.scalar_type());
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> sequence_meta(
    const Tensor& input,
    const Tensor& weights,
    const std::optional<Tensor>& bias,
    const std::optional<Tensor>& h0,
    const std::optional<Tensor>& c0,
    const std::optional<Tensor>& lengths,
    const std::optional<Tensor>& reset,
    bool /*reverse*/,
    bool keep) {
  const auto [steps, batch, input_features, state_size] =
      check<c10::SymInt>(SequenceArguments{input, weights, bias, h0, c0, lengths, reset});
  const c10::SymInt kept_steps = keep ? steps : c10::SymInt(0);
  return {empty({steps, batch, state_size}, input),
          empty({batch, state_size}, input),
          empty({batch, state_size}, input, final_cell_dtype(input, c0)),
          empty({kept_steps, batch, state_size}, input),
          empty({kept_steps, batch, state_size * 3}, input)};
}

OptionalGradients sequence_backward_meta(const std::optional<Tensor>& grad_output,
                                         const std::optional<Tensor>& grad_h_n,
                                         const std::optional<Tensor>& grad_c_n,
                                         const std::optional<Tensor>& grad_cells,
                                         const Tensor& output,
                                         const Tensor& cells,
                                         const Tensor& gates,
                                         const Tensor& input,
                                         const Tensor& weights,
                                         const std::optional<Tensor>& bias,
                                         const std::optional<Tensor>& h0,
                                         const std::optional<Tensor>& c0,
                                         const std::optional<Tensor>& lengths,
                                         const std::optional<Tensor>& reset,
                                         bool /*reverse*/,
                                         std::array<bool, 5> output_mask) {
  const auto sizes = check<c10::SymInt>(SequenceBackwardArguments{grad_output,
                                                                  grad_h_n,
                                                                  grad_c_n,
                                                                  grad_cells,
                                                                  output,
                                                                  cells,
                                                                  gates,
                                                                  input,
                                                                  weights,
                                                                  bias,
                                                                  h0,
                                                                  c0,
                                                                  lengths,
                                                                  reset});
  return empty_if_wanted(output_mask,
                         {.input = {sizes.steps, sizes.batch, sizes.input_features},
                          .state = {sizes.batch, sizes.state_size},
                          .state_size = sizes.state_size,
                          .input_features = sizes.input_features},
                         input,
                         final_cell_dtype(input, c0));
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, Meta, m) {
  m.impl("forward", TORCH_FN(forward_meta));
  m.impl("backward", TORCH_FN(backward_meta));
  m.impl("sequence", TORCH_FN(sequence_meta));
  m.impl("sequence_backward", TORCH_FN(sequence_backward_meta));
}

}  // namespace lltm
