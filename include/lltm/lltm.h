// The LLTM recurrent cell for C++ programs.
//
// The cell is an LSTM without forget gate and with an ELU candidate; it comes from PyTorch's
// tutorial on C++ extensions. With N = batch, I = input features and H = state size:
//
//   z        = [old_h, input] @ weights.T + bias     (N, 3H): input gate, output gate, candidate
//   new_cell = old_cell + elu(z_candidate) * sigmoid(z_input_gate)
//   new_h    = tanh(new_cell) * sigmoid(z_output_gate)
//
// Both functions are typed calls of PyTorch's dispatcher, so autograd, autocast, the functorch
// transforms and the tracers see them exactly as they see torch.ops.lltm in Python.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>

#define LLTM_API __attribute__((visibility("default")))

namespace lltm {

/// One step of the cell.
///
/// All tensors have one dtype (float64, float32, float16 or bfloat16) and live on one device (CPU
/// or CUDA); any strides are right. Differentiable in every argument.
///
/// @param input     (N, I)
/// @param weights   (3H, H+I), columns ordered [old_h | input], rows [input gate | output gate |
///                  candidate]
/// @param bias      (3H), or std::nullopt
/// @param old_h     (N, H)
/// @param old_cell  (N, H)
/// @return new_h (N, H), new_cell (N, H), and gates (N, 3H): the workspace that backward() reads,
///         the pre-activations z of the three gates with the bias added. gates is not
///         differentiable. No result shares storage with an argument or another result.
/// @throws c10::Error that names the argument, what was expected of it and what came.
LLTM_API std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(
    const at::Tensor& input,
    const at::Tensor& weights,
    const std::optional<at::Tensor>& bias,
    const at::Tensor& old_h,
    const at::Tensor& old_cell);

/// The gradients of one step of the cell. Autograd calls this; a program seldom needs to.
///
/// @param grad_h, grad_cell  (N, H), the gradients of new_h and new_cell; std::nullopt stands for a
///                           zero gradient and is never materialised
/// @param new_cell, gates    what forward() returned
/// @param input, weights, bias, old_h  what forward() was given
/// @param output_mask        which of the five results are wanted, in their order
/// @return d_input (N, I), d_weights (3H, H+I), d_bias (3H), d_old_h (N, H), d_old_cell (N, H); a
///         result that is not wanted is an undefined tensor. d_bias is defined for a cell without
///         bias too, if it is asked for. Differentiable in every tensor but gates.
/// @throws c10::Error that names the argument, what was expected of it and what came.
LLTM_API std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> backward(
    const std::optional<at::Tensor>& grad_h,
    const std::optional<at::Tensor>& grad_cell,
    const at::Tensor& new_cell,
    const at::Tensor& gates,
    const at::Tensor& input,
    const at::Tensor& weights,
    const std::optional<at::Tensor>& bias,
    const at::Tensor& old_h,
    std::array<bool, 5> output_mask);

/// The version of the loaded library, as "major.minor.patch".
LLTM_API const char* version();

/// Whether the loaded library has CUDA kernels. Whether there is a GPU is another question.
LLTM_API bool has_cuda();

}  // namespace lltm
