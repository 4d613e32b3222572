// The cell of nn.LSTM (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000):
//
//   i, f, o = sigmoid(z_i), sigmoid(z_f), sigmoid(z_o);  g = tanh(z_g)
//   c' = f c + i g;  h' = o tanh(c')
#pragma once

#include "math.h"

namespace lltm::cell {

struct Lstm {
  /// Input gate, forget gate, candidate and output gate, as the rows of weight_ih are ordered.
  static constexpr int kGates = 4, kInputs = 4, kSaved = 4;
  static constexpr int kOfInput[] = {0, 1, 2, 3}, kOfGate[] = {0, 1, 2, 3};
  static constexpr int kStates = 1, kColumns = 0;
  static constexpr bool kAdds = true, kCarriesH = false, kBounded = true;
  static constexpr bool kReadsOldCell = true;

  template <typename Math, typename Value>
  static LLTM_HOST_DEVICE State<Value> forward(const Value (&z)[kGates], Value old_cell) {
    const Value i = sigmoid_value<Math>(z[0]);
    const Value f = forget_gate<Math>(z[1]).value;
    const Value g = candidate_tanh<Math>(z[2]);
    const Value o = output_gate_value<Math>(z[3]);
    const Value new_cell = f * old_cell + i * g;
    return {Math::tanh(new_cell) * o, new_cell};
  }

  /// What the gradients of an element are multiplied by. It is known before the gradients are.
  template <typename Value>
  struct Derivatives {
    Value h_by_cell;
    Value cell_by_old;
    Value by_z[kGates];  // of new_cell by z_i, z_f and z_g, and of new_h by z_o
  };

  template <typename Math, typename Value>
  static LLTM_HOST_DEVICE Derivatives<Value> derivatives(const Value (&z)[kGates],
                                                         Value old_cell,
                                                         Value new_cell) {
    const Sigmoid<Value> i = sigmoid<Math>(z[0]);
    const Sigmoid<Value> f = forget_gate<Math>(z[1]);
    const Value g = candidate_tanh<Math>(z[2]);
    const Sigmoid<Value> o = sigmoid<Math>(z[3]);
    const Value t = Math::tanh(new_cell);
    return {o.value * (Value(1) - t * t),
            f.value,
            {g * i.derivative,
             old_cell * f.derivative,
             i.value * (Value(1) - g * g),
             t * o.derivative}};
  }

  /// Writes the gradients of z. Returns that of old_cell.
  template <typename Value>
  static LLTM_HOST_DEVICE Value
  backward(const Derivatives<Value>& by, Value grad_h, Value grad_cell, Value (&d_z)[kGates]) {
    const Value d_cell = grad_cell + grad_h * by.h_by_cell;
    d_z[0] = d_cell * by.by_z[0];
    d_z[1] = d_cell * by.by_z[1];
    d_z[2] = d_cell * by.by_z[2];
    d_z[3] = grad_h * by.by_z[3];
    return d_cell * by.cell_by_old;
  }
};

}  // namespace lltm::cell
