// The recurrent cells for C++ programs: the LLTM, and the cells of nn.LSTM and nn.GRU over a whole
// sequence.
//
// The LLTM is an LSTM without a forget gate and with an ELU candidate, from PyTorch's tutorial on
// C++ extensions. With N = batch, I = input features and H = state size:
//
//   z        = [old_h, input] @ weights.T + bias     (N, 3H): input gate, output gate, candidate
//   new_cell = old_cell + elu(z_candidate) * sigmoid(z_input_gate)
//   new_h    = tanh(new_cell) * sigmoid(z_output_gate)
//
// The functions are typed calls through PyTorch's dispatcher, so autograd, autocast, the functorch
// transforms and the tracers treat them exactly as they treat torch.ops.lltm in Python.
//
// All tensors must be dense (strided). The dispatcher refuses most tensors of another layout, such
// as sparse ones, with PyTorch's own error, which names the operator and not the argument.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#define LLTM_API __attribute__((visibility("default")))

namespace lltm {

/// One step of the cell.
///
/// All tensors must have the same dtype (float64, float32, float16 or bfloat16) and be on the same
/// device (CPU or CUDA). Arbitrary strides are supported. Differentiable with respect to every
/// argument.
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
/// @throws c10::Error if an argument is invalid. The message names the argument, what was expected
///         and what was received.
LLTM_API std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(
    const at::Tensor& input,
    const at::Tensor& weights,
    const std::optional<at::Tensor>& bias,
    const at::Tensor& old_h,
    const at::Tensor& old_cell);

/// The gradients of one step of the cell. Called by autograd; programs rarely need to call it.
///
/// @param grad_h, grad_cell  (N, H), the gradients of new_h and new_cell; std::nullopt means a zero
///                           gradient
/// @param new_cell, gates    as returned by forward()
/// @param input, weights, bias, old_h  as passed to forward()
/// @param output_mask        which of the five results to compute, in the order of the results
/// @return d_input (N, I), d_weights (3H, H+I), d_bias (3H), d_old_h (N, H), d_old_cell (N, H).
///         Results that were not requested are undefined tensors. d_bias can be requested for a
///         cell without a bias, too. Differentiable with respect to every tensor except gates.
/// @throws c10::Error if an argument is invalid. The message names the argument, what was expected
///         and what was received.
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
/// Floating-point tensors must have input's dtype (float64, float32, float16 or bfloat16), except
/// that c0 may be float32 when input is 16-bit: a stream of calls can then carry its state exactly.
/// All tensors must be on the same device (CPU or CUDA). Arbitrary strides are supported. For
/// 16-bit dtypes the cell state is carried from step to step in float32, and h as it is rounded in
/// `output`. Differentiable with respect to input, weights, bias, h0 and c0.
///
/// @param input    (T, N, I), time first
/// @param weights  (3H, H+I), as for forward()
/// @param bias     (3H), or std::nullopt
/// @param h0, c0   (N, H), the state before the first step that is run; std::nullopt means zeros
/// @param lengths  (N), int64 or int32: the number of steps in each row, clamped to 0..T;
///                 std::nullopt means T for every row. Input and incoming gradients beyond a row's
///                 length are ignored, even NaN. Never copied to the host
/// @param reset    (T, N), bool: where true, the row's state is set to zero before that step and no
///                 gradient flows through it; std::nullopt means no resets
/// @param reverse  whether to run each row from step length-1, where h0 and c0 enter, down to
///                 step 0
/// @param keep     whether to return cells and gates, which take 4*T*N*H elements of memory
/// @return output (T, N, H): new_h of every step, zero beyond a row's length;
///         h_n, c_n (N, H): the state after the last step that is run; c_n has c0's dtype if c0 is
///         given;
///         cells (T, N, H): new_cell of every step, zero beyond a row's length; and
///         gates (T, N, 3H): the workspace of sequence_backward(), not differentiable. Without
///         `keep` the last two have no steps: (0, N, H) and (0, N, 3H). No result shares storage
///         with an argument or another result.
/// @throws c10::Error if an argument is invalid. The message names the argument, what was expected
///         and what was received.
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

/// How sequence() would compute these arguments on a GPU. Launches nothing.
///
/// @param input, weights, ...  as for sequence(), on a CUDA device
/// @return for example `kernel=recurrence_fma_128x1 cluster=1 rows=1 x=outside`: the kernel, which
///         runs all steps (`recurrence_...`) or one; the blocks of a cluster; the rows of the batch
///         that a block or cluster takes; and whether the kernel multiplies the input itself. Names
///         of kernels may change with any version.
/// @throws c10::Error if an argument is invalid, or if LLTM_CUDA_PATH asks for what is impossible.
LLTM_API std::string sequence_plan(const at::Tensor& input,
                                   const at::Tensor& weights,
                                   const std::optional<at::Tensor>& bias = std::nullopt,
                                   const std::optional<at::Tensor>& h0 = std::nullopt,
                                   const std::optional<at::Tensor>& c0 = std::nullopt,
                                   const std::optional<at::Tensor>& lengths = std::nullopt,
                                   const std::optional<at::Tensor>& reset = std::nullopt,
                                   bool reverse = false,
                                   bool keep = false);

/// The gradients of a whole sequence. Called by autograd; programs rarely need to call it.
///
/// @param grad_output, grad_cells  (T, N, H), the gradients of output and cells
/// @param grad_h_n, grad_c_n       (N, H), the gradients of h_n and c_n, in their dtypes.
///                                 std::nullopt means a zero gradient for each of the four
/// @param output, cells, gates     as returned by sequence() with `keep`
/// @param input, weights, bias, h0, c0, lengths, reset, reverse  as passed to sequence()
/// @param output_mask              which of the five results to compute, in the order of the
///                                 results
/// @return d_input (T, N, I), zero beyond a row's length, d_weights (3H, H+I), d_bias (3H),
///         d_h0 (N, H), and d_c0 (N, H) in c_n's dtype. Results that were not requested are
///         undefined tensors. d_bias, d_h0 and d_c0 can be requested even if bias, h0 or c0 is
///         absent. Differentiable with respect to every floating-point tensor except gates.
/// @throws c10::Error if an argument is invalid. The message names the argument, what was expected
///         and what was received.
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

/// The cell of nn.LSTM over a whole sequence. T = steps, N = batch. With z = input @ weight_ih.T +
/// bias + old_h @ weight_hh.T (N, 4H), whose columns are input gate, forget gate, candidate and
/// output gate:
///
///   new_cell = sigmoid(z_forget) * old_cell + sigmoid(z_input) * tanh(z_candidate)
///   new_h    = sigmoid(z_output) * tanh(new_cell)
///
/// Except for the cell and its weights, everything is as for sequence(): dtypes, devices, strides,
/// lengths, reset, reverse and keep, with which cells and gates take 5*T*N*H elements of memory.
/// Differentiable with respect to input, weight_ih, weight_hh, bias, h0 and c0.
///
/// @param input      (T, N, I), time first
/// @param weight_ih  (4H, I), as nn.LSTM's weight_ih_l0
/// @param weight_hh  (4H, H), as nn.LSTM's weight_hh_l0
/// @param bias       (4H), the sum of nn.LSTM's two biases; or std::nullopt
/// @param h0, c0     (N, H), the state before the first step that is run; std::nullopt means zeros
/// @param lengths, reset, reverse, keep  as for sequence()
/// @return output (T, N, H); h_n, c_n (N, H); cells (T, N, H); and gates (T, N, 4H), the workspace
///         of lstm_backward(): the pre-activations z, which are unspecified beyond a row's length.
///         Otherwise as for sequence().
/// @throws c10::Error if an argument is invalid. The message names the argument, what was expected
///         and what was received.
LLTM_API std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> lstm(
    const at::Tensor& input,
    const at::Tensor& weight_ih,
    const at::Tensor& weight_hh,
    const std::optional<at::Tensor>& bias = std::nullopt,
    const std::optional<at::Tensor>& h0 = std::nullopt,
    const std::optional<at::Tensor>& c0 = std::nullopt,
    const std::optional<at::Tensor>& lengths = std::nullopt,
    const std::optional<at::Tensor>& reset = std::nullopt,
    bool reverse = false,
    bool keep = false);

/// How lstm() would compute these arguments on a GPU, as sequence_plan() says it. Launches nothing.
///
/// @param input, weight_ih, ...  as for lstm(), on a CUDA device
/// @return for example `kernel=recurrence_lstm_fma_128x1_cluster2 cluster=2 rows=1 x=outside`
/// @throws c10::Error if an argument is invalid, or if LLTM_CUDA_PATH asks for what is impossible.
LLTM_API std::string lstm_plan(const at::Tensor& input,
                               const at::Tensor& weight_ih,
                               const at::Tensor& weight_hh,
                               const std::optional<at::Tensor>& bias = std::nullopt,
                               const std::optional<at::Tensor>& h0 = std::nullopt,
                               const std::optional<at::Tensor>& c0 = std::nullopt,
                               const std::optional<at::Tensor>& lengths = std::nullopt,
                               const std::optional<at::Tensor>& reset = std::nullopt,
                               bool reverse = false,
                               bool keep = false);

/// The gradients of lstm(). Called by autograd; programs rarely need to call it.
///
/// @param grad_output, grad_cells  (T, N, H), the gradients of output and cells
/// @param grad_h_n, grad_c_n       (N, H), the gradients of h_n and c_n, in their dtypes.
///                                 std::nullopt means a zero gradient for each of the four
/// @param output, cells, gates     as returned by lstm() with `keep`
/// @param input, weight_ih, weight_hh, bias, h0, c0, lengths, reset, reverse  as passed to lstm()
/// @param output_mask              which of the six results to compute, in the order of the results
/// @return d_input (T, N, I), zero beyond a row's length, d_weight_ih (4H, I), d_weight_hh (4H, H),
///         d_bias (4H), d_h0 (N, H), and d_c0 (N, H) in c_n's dtype. Results that were not
///         requested are undefined tensors. d_bias, d_h0 and d_c0 can be requested even if bias, h0
///         or c0 is absent. Differentiable with respect to every floating-point tensor except
///         gates.
/// @throws c10::Error if an argument is invalid. The message names the argument, what was expected
///         and what was received.
LLTM_API
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> lstm_backward(
    const std::optional<at::Tensor>& grad_output,
    const std::optional<at::Tensor>& grad_h_n,
    const std::optional<at::Tensor>& grad_c_n,
    const std::optional<at::Tensor>& grad_cells,
    const at::Tensor& output,
    const at::Tensor& cells,
    const at::Tensor& gates,
    const at::Tensor& input,
    const at::Tensor& weight_ih,
    const at::Tensor& weight_hh,
    const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& h0,
    const std::optional<at::Tensor>& c0,
    const std::optional<at::Tensor>& lengths,
    const std::optional<at::Tensor>& reset,
    bool reverse,
    std::array<bool, 6> output_mask);

/// The cell of nn.GRU over a whole sequence. T = steps, N = batch. With x = input @ weight_ih.T +
/// bias_ih and s = old_h @ weight_hh.T + bias_hh (N, 3H), whose columns are reset gate, update gate
/// and candidate:
///
///   reset_gate  = sigmoid(x_reset + s_reset)
///   update_gate = sigmoid(x_update + s_update)
///   candidate   = tanh(x_candidate + reset_gate * s_candidate)
///   new_h       = (1 - update_gate) * candidate + update_gate * old_h
///
/// Dtypes, devices, strides, lengths, reset and reverse are as for sequence(), but the only state
/// is h. For 16-bit dtypes it is carried from step to step in float32, and h0 may be float32.
/// Differentiable with respect to input, weight_ih, weight_hh, bias_ih, bias_hh and h0.
///
/// @param input      (T, N, I), time first
/// @param weight_ih  (3H, I), as nn.GRU's weight_ih_l0
/// @param weight_hh  (3H, H), as nn.GRU's weight_hh_l0
/// @param bias_ih, bias_hh  (3H), as nn.GRU's bias_ih_l0 and bias_hh_l0; either may be std::nullopt
/// @param h0         (N, H), the state before the first step that is run; std::nullopt means zeros
/// @param lengths, reset, reverse  as for sequence()
/// @param keep       whether to return gates, which take 4*T*N*H elements of memory
/// @return output (T, N, H): new_h of every step, zero beyond a row's length;
///         h_n (N, H): the state after the last step that is run, in h0's dtype if it is given; and
///         gates (T, N, 4H): the workspace of gru_backward(), not differentiable: x_reset +
///         s_reset, x_update + s_update, x_candidate and s_candidate, which are unspecified beyond
///         a row's length. (0, N, 4H) without `keep`. No result shares storage with an argument or
///         another result.
/// @throws c10::Error if an argument is invalid. The message names the argument, what was expected
///         and what was received.
LLTM_API std::tuple<at::Tensor, at::Tensor, at::Tensor> gru(
    const at::Tensor& input,
    const at::Tensor& weight_ih,
    const at::Tensor& weight_hh,
    const std::optional<at::Tensor>& bias_ih = std::nullopt,
    const std::optional<at::Tensor>& bias_hh = std::nullopt,
    const std::optional<at::Tensor>& h0 = std::nullopt,
    const std::optional<at::Tensor>& lengths = std::nullopt,
    const std::optional<at::Tensor>& reset = std::nullopt,
    bool reverse = false,
    bool keep = false);

/// How gru() would compute these arguments on a GPU, as sequence_plan() says it. Launches nothing.
///
/// @param input, weight_ih, ...  as for gru(), on a CUDA device
/// @return for example `kernel=recurrence_gru_fma_128x1 cluster=1 rows=1 x=outside`
/// @throws c10::Error if an argument is invalid, or if LLTM_CUDA_PATH asks for what is impossible.
LLTM_API std::string gru_plan(const at::Tensor& input,
                              const at::Tensor& weight_ih,
                              const at::Tensor& weight_hh,
                              const std::optional<at::Tensor>& bias_ih = std::nullopt,
                              const std::optional<at::Tensor>& bias_hh = std::nullopt,
                              const std::optional<at::Tensor>& h0 = std::nullopt,
                              const std::optional<at::Tensor>& lengths = std::nullopt,
                              const std::optional<at::Tensor>& reset = std::nullopt,
                              bool reverse = false,
                              bool keep = false);

/// The gradients of gru(). Called by autograd; programs rarely need to call it.
///
/// @param grad_output    (T, N, H), the gradient of output
/// @param grad_h_n       (N, H), the gradient of h_n, in its dtype. std::nullopt means a zero
///                       gradient for both
/// @param output, gates  as returned by gru() with `keep`
/// @param input, weight_ih, weight_hh, bias_ih, bias_hh, h0, lengths, reset, reverse  as passed to
///                       gru()
/// @param output_mask    which of the six results to compute, in the order of the results
/// @return d_input (T, N, I), zero beyond a row's length, d_weight_ih (3H, I), d_weight_hh (3H, H),
///         d_bias_ih (3H), d_bias_hh (3H), and d_h0 (N, H) in h_n's dtype. Results that were not
///         requested are undefined tensors. d_bias_ih, d_bias_hh and d_h0 can be requested even if
///         bias_ih, bias_hh or h0 is absent. Differentiable with respect to every floating-point
///         tensor except gates.
/// @throws c10::Error if an argument is invalid. The message names the argument, what was expected
///         and what was received.
LLTM_API
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_backward(
    const std::optional<at::Tensor>& grad_output,
    const std::optional<at::Tensor>& grad_h_n,
    const at::Tensor& output,
    const at::Tensor& gates,
    const at::Tensor& input,
    const at::Tensor& weight_ih,
    const at::Tensor& weight_hh,
    const std::optional<at::Tensor>& bias_ih,
    const std::optional<at::Tensor>& bias_hh,
    const std::optional<at::Tensor>& h0,
    const std::optional<at::Tensor>& lengths,
    const std::optional<at::Tensor>& reset,
    bool reverse,
    std::array<bool, 6> output_mask);

/// What lltm_layers(), lstm_layers() and gru_layers() take beside the input and the parameters.
struct LayersArguments {
  // (D * L, N, H), or (D * L, H): zeros if absent. A GRU has no c0.
  std::optional<at::Tensor> h0, c0;
  std::optional<at::Tensor> lengths, reset;  // as the modules take them
  /// Those of a PackedSequence, whose data is the input.
  std::optional<at::Tensor> batch_sizes, sorted_indices, unsorted_indices;
  bool has_biases = true;
  bool batch_first = false;
  double dropout = 0;  // between layers
  bool bidirectional = false;
  bool keep = false;  // whether to return the states after every step
};

/// All layers of a module, composed of calls of sequence(), lstm() or gru(). The modules in
/// lltm/nn.h describe the tensors.
///
/// @param parameters  of each layer and, within a layer, each direction, in the modules' order
/// @return output, h_n, c_n and, if they are kept, h and c after every step; of a GRU without c
/// @throws c10::Error if an argument is invalid. The message begins with the module's name, or with
///         that of the operator
LLTM_API std::tuple<at::Tensor, at::Tensor, at::Tensor, std::vector<at::Tensor>> lltm_layers(
    const at::Tensor& input,
    c10::ArrayRef<at::Tensor> parameters,
    const LayersArguments& arguments = {});
LLTM_API std::tuple<at::Tensor, at::Tensor, at::Tensor, std::vector<at::Tensor>> lstm_layers(
    const at::Tensor& input,
    c10::ArrayRef<at::Tensor> parameters,
    const LayersArguments& arguments = {});
LLTM_API std::tuple<at::Tensor, at::Tensor, std::vector<at::Tensor>> gru_layers(
    const at::Tensor& input,
    c10::ArrayRef<at::Tensor> parameters,
    const LayersArguments& arguments = {});

/// The version of the loaded library, as "major.minor.patch".
LLTM_API const char* version();

/// Whether the loaded library has CUDA kernels. Says nothing about whether a GPU is present.
LLTM_API bool has_cuda();

}  // namespace lltm
