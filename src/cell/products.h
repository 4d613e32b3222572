// The cell's matrix products by ATen, for when no kernel of this library computes them.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace lltm {

/// The columns of weights, or of d_weights, that belong to h and to input, as views.
at::Tensor h_columns(const at::Tensor& weights);
at::Tensor input_columns(const at::Tensor& weights);

/// gates = [old_h | input] @ weights.T + bias, of shape (batch, 3*state_size).
void pre_activations_out(const at::Tensor& gates,
                         const at::Tensor& input,
                         const at::Tensor& weights,
                         const std::optional<at::Tensor>& bias,
                         const at::Tensor& old_h);

/// d_weights = d_gates.T @ [old_h | input], written in place as two column blocks.
void weight_gradient_out(const at::Tensor& d_weights,
                         const at::Tensor& d_gates,
                         const at::Tensor& input,
                         const at::Tensor& old_h);

/// d_old_h = d_gates @ weights[:, :state_size].
void old_h_gradient_out(const at::Tensor& d_old_h,
                        const at::Tensor& d_gates,
                        const at::Tensor& weights);

/// d_input = d_gates @ weights[:, state_size:].
void input_gradient_out(const at::Tensor& d_input,
                        const at::Tensor& d_gates,
                        const at::Tensor& weights);

}  // namespace lltm
