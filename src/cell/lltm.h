// The scalar math of the LLTM cell. All kernels share this implementation of the formula.
#pragma once

#include "math.h"

namespace lltm::cell {

/// One value per gate: a pre-activation z, or its gradient. Rows of `weights` are in this order.
template <typename Value>
struct Gates {
  Value input_gate;
  Value output_gate;
  Value candidate;
};

template <typename Value>
struct State {
  Value h;
  Value cell;
};

template <typename Value>
struct Gradients {
  Gates<Value> gates;  // dz
  Value old_cell;
};

/// ELU with alpha = 1. expm1 keeps the relative accuracy for small z.
template <typename Math, typename Value>
LLTM_HOST_DEVICE Value elu(Value z) {
  return Math::where(z > Value(0), z, Math::expm1(z));
}

template <typename Math, typename Value>
LLTM_HOST_DEVICE Value elu_derivative(Value z) {
  return Math::where(z > Value(0), Value(1), Math::exp(z));
}

template <typename Math, typename Value>
LLTM_HOST_DEVICE State<Value> forward(const Gates<Value>& z, Value old_cell) {
  const Value i = sigmoid_value<Math>(z.input_gate);
  const Value o = output_gate_value<Math>(z.output_gate);
  const Value g = elu<Math>(z.candidate);
  const Value new_cell = old_cell + g * i;
  return {Math::tanh(new_cell) * o, new_cell};
}

/// What the gradients of an element are multiplied by. It is known before the gradients are.
template <typename Value>
struct Derivatives {
  Value h_by_cell;
  Gates<Value> gates;  // of new_cell by z_i, of new_h by z_o, and of new_cell by z_g
};

template <typename Math, typename Value>
LLTM_HOST_DEVICE Derivatives<Value> derivatives(const Gates<Value>& z, Value new_cell) {
  const Sigmoid<Value> i = sigmoid<Math>(z.input_gate);
  const Sigmoid<Value> o = sigmoid<Math>(z.output_gate);
  const Value t = Math::tanh(new_cell);
  return {o.value * (Value(1) - t * t),
          {elu<Math>(z.candidate) * i.derivative,
           t * o.derivative,
           i.value * elu_derivative<Math>(z.candidate)}};
}

template <typename Value>
LLTM_HOST_DEVICE Gradients<Value> backward(const Derivatives<Value>& by,
                                           Value grad_h,
                                           Value grad_cell) {
  const Value d_cell = grad_cell + grad_h * by.h_by_cell;
  return {
      {d_cell * by.gates.input_gate, grad_h * by.gates.output_gate, d_cell * by.gates.candidate},
      d_cell};
}

template <typename Math, typename Value>
LLTM_HOST_DEVICE Gradients<Value> backward(const Gates<Value>& z,
                                           Value new_cell,
                                           Value grad_h,
                                           Value grad_cell) {
  return backward(derivatives<Math>(z, new_cell), grad_h, grad_cell);
}

}  // namespace lltm::cell
