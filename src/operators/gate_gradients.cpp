#include "gate_gradients.h"

#include <ATen/core/dispatch/Dispatcher.h>

namespace lltm {

using at::Tensor;

GateGradients sequence_gate_gradients(const std::optional<Tensor>& grad_output,
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
                                      bool reverse,
                                      std::array<bool, 2> state_mask) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lltm::_sequence_gate_gradients", "")
                             .typed<decltype(sequence_gate_gradients)>();
  return op.call(grad_output,
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
                 reset,
                 reverse,
                 state_mask);
}

GateGradients lstm_gate_gradients(const std::optional<Tensor>& grad_output,
                                  const std::optional<Tensor>& grad_h_n,
                                  const std::optional<Tensor>& grad_c_n,
                                  const std::optional<Tensor>& grad_cells,
                                  const Tensor& output,
                                  const Tensor& cells,
                                  const Tensor& gates,
                                  const Tensor& input,
                                  const Tensor& weight_ih,
                                  const Tensor& weight_hh,
                                  const std::optional<Tensor>& bias,
                                  const std::optional<Tensor>& h0,
                                  const std::optional<Tensor>& c0,
                                  const std::optional<Tensor>& lengths,
                                  const std::optional<Tensor>& reset,
                                  bool reverse,
                                  std::array<bool, 2> state_mask) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lltm::_lstm_gate_gradients", "")
                             .typed<decltype(lstm_gate_gradients)>();
  return op.call(grad_output,
                 grad_h_n,
                 grad_c_n,
                 grad_cells,
                 output,
                 cells,
                 gates,
                 input,
                 weight_ih,
                 weight_hh,
                 bias,
                 h0,
                 c0,
                 lengths,
                 reset,
                 reverse,
                 state_mask);
}

}  // namespace lltm
