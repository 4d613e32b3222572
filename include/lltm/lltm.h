// The LLTM recurrent cell for C++ programs.
//
// The cell is an LSTM without forget gate and with an ELU candidate; it comes from PyTorch's
// tutorial on C++ extensions. With N = batch, I = input features and H = state size:
//
//   z        = [old_h, input] @ weights.T + bias     (N, 3H): input gate, output gate, candidate
//   new_cell = old_cell + elu(z_candidate) * sigmoid(z_input_gate)
//   new_h    = tanh(new_cell) * sigmoid(z_output_gate)
//
// The functions are typed calls of PyTorch's dispatcher, so autograd, autocast, the functorch
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

/// The cell over a whole sequence. T = steps, N = batch.
///
/// Floating-point tensors have input's dtype (float64, float32, float16 or bfloat16); c0 alone may
/// be float32 beside a 16-bit input, so that a stream of calls keeps its state exact. All live on
/// one device (CPU or CUDA); any strides are right. For 16-bit dtypes the cell state is carried in
/// float32 from step to step, and h as it is rounded in `output`. Differentiable in input, weights,
/// bias, h0 and c0.
///
/// @param input    (T, N, I), time first
/// @param weights  (3H, H+I), as forward()'s
/// @param bias     (3H), or std::nullopt
/// @param h0, c0   (N, H), the state before the first step that is run; std::nullopt stands for
///                 zeros
/// @param lengths  (N), int64: how many steps of each row count, clamped to 0..T; std::nullopt
///                 stands for T. Beyond its length nothing of a row's input or of its incoming
///                 gradients is used, not even a NaN. Never copied to the host
/// @param reset    (T, N), bool: where true, the row's state becomes zero before that step is run,
///                 and no gradient passes; std::nullopt stands for never
/// @param reverse  whether each row runs from step length-1, where h0 and c0 enter, down to step 0
/// @param keep     whether cells and gates are returned. They cost memory of 4*T*N*H elements
/// @return output (T, N, H): new_h of every step, zero beyond a row's length;
///         h_n, c_n (N, H): the state after the last step that is run, c_n of c0's dtype where it
///         is given;
///         cells (T, N, H): new_cell of every step, zero beyond a row's length; and
///         gates (T, N, 3H): the workspace of sequence_backward(), not differentiable. Without
///         `keep` the last two have no steps: (0, N, H) and (0, N, 3H). No result shares storage
///         with an argument or another result.
/// @throws c10::Error that names the argument, what was expected of it and what came.
LLTM_API std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> sequence(
    const at::Tensor& input,
    const at::Tensor& weights,
    const std::optional<at::Tensor>& bias = std::nullopt,
    const std::optional<at::Tensor>& h0 = std::nullopt,
    const std::optional<at::Tensor>& c0 = std::nullopt,
    const std::optional<at::Tensor>& lengths = std::nullopt,
    const std::optional<at::Tensor>& reset = std::nullopt,
    bool reverse = false,
    bool keep = false);

/// The gradients of a whole sequence. Autograd calls this; a program seldom needs to.
///
/// @param grad_output, grad_cells  (T, N, H), the gradients of output and cells
/// @param grad_h_n, grad_c_n       (N, H), those of h_n and c_n, of their dtypes; std::nullopt
///                                 stands for a zero gradient in all four
/// @param output, cells, gates     what sequence() returned with `keep`
/// @param input, weights, bias, h0, c0, lengths, reset, reverse  what sequence() was given
/// @param output_mask              which of the five results are wanted, in their order
/// @return d_input (T, N, I), zero beyond a row's length, d_weights (3H, H+I), d_bias (3H),
///         d_h0 (N, H), d_c0 (N, H) of c_n's dtype; a result that is not wanted is an undefined
///         tensor. d_bias, d_h0 and d_c0 are defined where the argument is absent too, if asked
///         for. Differentiable in every floating-point tensor but gates.
/// @throws c10::Error that names the argument, what was expected of it and what came.
LLTM_API std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> sequence_backward(
    const std::optional<at::Tensor>& grad_output,
    const std::optional<at::Tensor>& grad_h_n,
    const std::optional<at::Tensor>& grad_c_n,
    const std::optional<at::Tensor>& grad_cells,
    const at::Tensor& output,
    const at::Tensor& cells,
    const at::Tensor& gates,
    const at::Tensor& input,
    const at::Tensor& weights,
    const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& h0,
    const std::optional<at::Tensor>& c0,
    const std::optional<at::Tensor>& lengths,
    const std::optional<at::Tensor>& reset,
    bool reverse,
    std::array<bool, 5> output_mask);

/// The version of the loaded library, as "major.minor.patch".
LLTM_API const char* version();

/// Whether the loaded library has CUDA kernels. Whether there is a GPU is another question.
LLTM_API bool has_cuda();

}  // namespace lltm
