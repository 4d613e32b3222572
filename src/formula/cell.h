// The cell written in differentiable ATen operations: the composite formula.
//
// It is used where a fused kernel cannot be: for forward-mode AD (jvp) and the legacy vmap. Matrix
// products run in the tensors' dtype, pointwise operations in the accumulation type, and autocast
// is off.
#pragma once

#include "../checks.h"
#include "../gradient_index.h"

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <array>
#include <tuple>

namespace lltm::formula {

/// The formula of lltm::forward.
std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const ForwardArguments& arguments);

/// The formula of lltm::backward. It recomputes z from the inputs, because gates is not
/// differentiable.
OptionalGradients backward(const BackwardArguments& arguments, std::array<bool, 5> output_mask);

// The building blocks of a sequence's formula.

/// The tensor in the accumulation type.
at::Tensor accumulated(const at::Tensor& tensor);

/// 1 - tensor. The operator `-` would fill a tensor with ones and subtract in place, which fails in
/// tracers that run with autograd on: torch.scan and the export of a training step.
at::Tensor complement(const at::Tensor& tensor);

/// A copy of columns [begin, end) of a matrix.
at::Tensor columns(const at::Tensor& matrix, const c10::SymInt& begin, const c10::SymInt& end);

struct State {
  at::Tensor h;
  at::Tensor cell;
};

/// The new state, in the accumulation type, from the pre-activations z (N, 3H) in any dtype.
State step(const at::Tensor& z, const at::Tensor& old_cell);

struct StepGradients {
  at::Tensor gates;  // dz, (N, 3H)
  at::Tensor old_cell;
};

/// The gradients of step() in the accumulation type.
StepGradients step_backward(const at::Tensor& z,
                            const at::Tensor& new_cell,
                            const at::Tensor& grad_h,
                            const at::Tensor& grad_cell);

}  // namespace lltm::formula
