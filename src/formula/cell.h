// The cell written in differentiable ATen operations: the composite formula.
//
// It serves wherever a fused kernel cannot: below functorch transforms (vmap, grad, jvp), for
// forward-mode AD, and for the double backward. Its products run in the tensors' dtype, everything
// pointwise in the accumulation type, and autocast is off.
#pragma once

#include "../gradient_index.h"

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

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
OptionalGradients backward(const std::optional<at::Tensor>& grad_h,
                           const std::optional<at::Tensor>& grad_cell,
                           const at::Tensor& new_cell,
                           const at::Tensor& gates,
                           const at::Tensor& input,
                           const at::Tensor& weights,
                           const std::optional<at::Tensor>& bias,
                           const at::Tensor& old_h,
                           std::array<bool, 5> output_mask);

// The parts that the formula of a sequence is made of.

/// The checks leave no dtype for autocast to change, and it must not lower the products of float64.
struct WithoutAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autocast_dispatch_keyset};
};

/// In the accumulation type.
at::Tensor accumulated(const at::Tensor& tensor);

/// Columns [begin, end) of a matrix.
at::Tensor columns(const at::Tensor& matrix, const c10::SymInt& begin, const c10::SymInt& end);

struct State {
  at::Tensor h;
  at::Tensor cell;
};

/// The new state, in the accumulation type, from the pre-activations z (N, 3H) in any.
State step(const at::Tensor& z, const at::Tensor& old_cell);

struct StepGradients {
  at::Tensor gates;  // dz, (N, 3H)
  at::Tensor old_cell;
};

/// The gradients of step() in the accumulation type. Those that come in may be undefined.
StepGradients step_backward(const at::Tensor& z,
                            const at::Tensor& new_cell,
                            const at::Tensor& grad_h,
                            const at::Tensor& grad_cell);

}  // namespace lltm::formula
