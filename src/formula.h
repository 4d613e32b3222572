// The cell written in differentiable ATen operations: the composite formula.
//
// It serves wherever a fused kernel cannot: below functorch transforms (vmap, grad, jvp), for
// forward-mode AD, and for the double backward. Its products run in the tensors' dtype, everything
// pointwise in the accumulation type, and autocast is off.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>

namespace lltm::formula {

/// As lltm::forward.
std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& input,
                                                       const at::Tensor& weights,
                                                       const std::optional<at::Tensor>& bias,
                                                       const at::Tensor& old_h,
                                                       const at::Tensor& old_cell);

/// As lltm::backward. It computes z again from the inputs, because gates is not differentiable, and
/// takes tanh of new_cell, through which a gradient of this gradient reaches forward's node.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> backward(
    const std::optional<at::Tensor>& grad_h,
    const std::optional<at::Tensor>& grad_cell,
    const at::Tensor& new_cell,
    const at::Tensor& gates,
    const at::Tensor& input,
    const at::Tensor& weights,
    const std::optional<at::Tensor>& bias,
    const at::Tensor& old_h,
    std::array<bool, 5> output_mask);

}  // namespace lltm::formula
