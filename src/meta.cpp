// The Meta kernels: shapes and dtypes of the results without computing them, with symbolic sizes.
#include "checks.h"
#include "gradient_index.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/SymInt.h>
#include <torch/library.h>

namespace lltm {
namespace {

using at::Tensor;

Tensor empty(at::SymIntArrayRef sizes, const Tensor& like) {
  return at::empty_symint(sizes, like.options());
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

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward_meta(
    const std::optional<Tensor>& grad_h,
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
  const c10::SymInt rows = sizes.state_size * 3;
  const auto empty_if_wanted = [&](Gradient gradient, at::SymIntArrayRef shape) {
    return output_mask[gradient] ? empty(shape, input) : Tensor();
  };
  return {empty_if_wanted(kInput, {sizes.batch, sizes.input_features}),
          empty_if_wanted(kWeights, {rows, sizes.state_size + sizes.input_features}),
          empty_if_wanted(kBias, {rows}),
          empty_if_wanted(kOldH, {sizes.batch, sizes.state_size}),
          empty_if_wanted(kOldCell, {sizes.batch, sizes.state_size})};
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, Meta, m) {
  m.impl("forward", TORCH_FN(forward_meta));
  m.impl("backward", TORCH_FN(backward_meta));
}

}  // namespace lltm
