// lltm::_sequence_gate_gradients and lltm::_lstm_gate_gradients: the part of the backward operators
// of a sequence that runs step by step.
//
// Below torch.vmap, the batch of all examples is folded into one, but each example has gradients of
// its own with respect to the weights and the bias. They are sums over the rows of d_gates, so the
// batching rules take d_gates from these operators and compute the sums themselves. The operators
// are private: their schemas may change at any time.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>

namespace lltm {

/// d_gates (T, N, gates), zero beyond a row's length, and the gradients of h0 and c0 where
/// requested.
using GateGradients = std::tuple<at::Tensor, std::optional<at::Tensor>, std::optional<at::Tensor>>;

/// Takes the arguments of lltm::sequence_backward. state_mask requests the gradients of h0 and c0.
GateGradients sequence_gate_gradients(const std::optional<at::Tensor>& grad_output,
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
                                      std::array<bool, 2> state_mask);

/// Takes the arguments of lltm::lstm_backward.
GateGradients lstm_gate_gradients(const std::optional<at::Tensor>& grad_output,
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
                                  std::array<bool, 2> state_mask);

}  // namespace lltm
