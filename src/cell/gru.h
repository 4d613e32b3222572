// The cell of nn.GRU (Cho et al. 2014), whose reset gate acts after the product with h:
//
//   r, z = sigmoid(s_r), sigmoid(s_z);  n = tanh(x_n + r s_n);  h' = n + z (h - n)
//
// s_r and s_z are sums of x and h, s_n is what h gives n. A gate that multiplies h before the
// product, as with reset_after=False in Keras and linear_before_reset=0 in ONNX, is another cell,
// with two products a step.
#pragma once

#include "math.h"

namespace lltm::cell {

struct Gru {
  /// Reset gate, update gate and candidate, as the rows of both weights are ordered. What is saved
  /// are s_r, s_z, x_n and s_n, with their biases.
  static constexpr int kGates = 3, kInputs = 3, kSaved = 4;
  static constexpr int kOfInput[] = {0, 1, 2}, kOfGate[] = {0, 1, 3};
  static constexpr int kStates = 1, kColumns = 1;
  static constexpr bool kAdds = false, kCarriesH = true, kBounded = true;
  static constexpr bool kReadsOldCell = true;

  // h' is computed as (1 - z) n + z h: close to z = 1, the small 1 - z keeps its accuracy, and an
  // infinite h that the gate keeps stays infinite.

  template <typename Math, typename Value>
  static LLTM_HOST_DEVICE State<Value> forward(const Value (&saved)[kSaved], Value old_h) {
    const Value r = sigmoid_value<Math>(saved[0]);
    const Value one_minus_z = forget_gate<Math>(-saved[1]).value;
    const Value n = candidate_tanh<Math>(saved[2] + r * saved[3]);
    const Value new_h = one_minus_z * n + (Value(1) - one_minus_z) * old_h;
    return {new_h, new_h};
  }

  /// What the gradient of an element is multiplied by. It is known before the gradient is.
  template <typename Value>
  struct Derivatives {
    Value by_old;
    Value by_saved[kSaved];
  };

  template <typename Math, typename Value>
  static LLTM_HOST_DEVICE Derivatives<Value> derivatives(const Value (&saved)[kSaved],
                                                         Value old_h,
                                                         Value /*new_h*/) {
    const Sigmoid<Value> r = sigmoid<Math>(saved[0]);
    const Sigmoid<Value> z = forget_gate<Math>(saved[1]);
    const Value one_minus_z = forget_gate<Math>(-saved[1]).value;
    const Value n = candidate_tanh<Math>(saved[2] + r.value * saved[3]);
    const Value by_n = one_minus_z * (Value(1) - n * n);
    return {z.value,
            {by_n * saved[3] * r.derivative, (old_h - n) * z.derivative, by_n, by_n * r.value}};
  }

  /// Writes the gradients of what is saved. Returns that of old_h, but for what passes through the
  /// product. grad_h and grad_state are parts of one gradient.
  template <typename Value>
  static LLTM_HOST_DEVICE Value
  backward(const Derivatives<Value>& by, Value grad_h, Value grad_state, Value (&d_saved)[kSaved]) {
    const Value d_h = grad_h + grad_state;
    for (int k = 0; k < kSaved; ++k) {
      d_saved[k] = d_h * by.by_saved[k];
    }
    return d_h * by.by_old;
  }
};

}  // namespace lltm::cell
