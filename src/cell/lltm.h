// The LLTM cell, an LSTM without a forget gate and with an ELU candidate:
//
//   i, o = sigmoid(z_i), sigmoid(z_o);  g = elu(z_g);  c' = c + g i;  h' = tanh(c') o
#pragma once

#include "math.h"

namespace lltm::cell {

/// ELU with alpha = 1. expm1 keeps the relative accuracy for small z.
template <typename Math, typename Value>
LLTM_HOST_DEVICE Value elu(Value z) {
  return Math::where(z > Value(0), z, Math::expm1(z));
}

template <typename Math, typename Value>
LLTM_HOST_DEVICE Value elu_derivative(Value z) {
  return Math::where(z > Value(0), Value(1), Math::exp(z));
}

struct Lltm {
  /// Input gate, output gate and candidate, as the rows of `weights` are ordered.
  static constexpr int kGates = 3, kInputs = 3, kSaved = 3;
  static constexpr int kOfInput[] = {0, 1, 2}, kOfGate[] = {0, 1, 2};
  static constexpr int kStates = 1, kColumns = 0;
  static constexpr bool kAdds = true, kCarriesH = false, kBounded = true;
  /// Whether derivatives() reads old_cell. If not, any value will do.
  static constexpr bool kReadsOldCell = false;

  template <typename Math, typename Value>
  static LLTM_HOST_DEVICE State<Value> forward(const Value (&z)[kGates], Value old_cell) {
    const Value i = sigmoid_value<Math>(z[0]);
    const Value o = output_gate_value<Math>(z[1]);
    const Value g = elu<Math>(z[2]);
    const Value new_cell = old_cell + g * i;
    return {Math::tanh(new_cell) * o, new_cell};
  }

  /// What the gradients of an element are multiplied by. It is known before the gradients are.
  template <typename Value>
  struct Derivatives {
    Value h_by_cell;
    Value by_z[kGates];  // of new_cell by z_i, of new_h by z_o, and of new_cell by z_g
  };

  template <typename Math, typename Value>
  static LLTM_HOST_DEVICE Derivatives<Value> derivatives(const Value (&z)[kGates],
                                                         Value /*old_cell*/,
                                                         Value new_cell) {
    const Sigmoid<Value> i = sigmoid<Math>(z[0]);
    const Sigmoid<Value> o = sigmoid<Math>(z[1]);
    const Value t = Math::tanh(new_cell);
    return {
        o.value * (Value(1) - t * t),
        {elu<Math>(z[2]) * i.derivative, t * o.derivative, i.value * elu_derivative<Math>(z[2])}};
  }

  /// Writes the gradients of z. Returns that of old_cell.
  template <typename Value>
  static LLTM_HOST_DEVICE Value
  backward(const Derivatives<Value>& by, Value grad_h, Value grad_cell, Value (&d_z)[kGates]) {
    const Value d_cell = grad_cell + grad_h * by.h_by_cell;
    d_z[0] = d_cell * by.by_z[0];
    d_z[1] = grad_h * by.by_z[1];
    d_z[2] = d_cell * by.by_z[2];
    return d_cell;
  }
};

}  // namespace lltm::cell
