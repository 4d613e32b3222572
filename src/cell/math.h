// What the cells are made of (lltm.h, lstm.h, gru.h). Each cell is a policy with the numbers of its
// two sides, and the forward and backward of an element, for the host and for CUDA device code.
// Kernels know a cell by its policy alone: no other code contains a formula.
//
// A step computes h' from two sides, the products of an element with h and with x:
//
//   kGates      sums that the product with h gives an element
//   kInputs     numbers that the product with x gives it
//   kSaved      numbers that forward(), derivatives() and backward() take, that are kept for the
//               backward, and that a row of gradients has
//   kOfInput    which of them each input is added to, and so which gradient it takes
//   kOfGate     the same for the sums with h
//   kAdds       whether both sides are added number by number, so that only x + h matters. The
//               operators of such a cell take one bias, those of others one of each side.
//   kStates     floats that are carried from step to step: State::cell
//   kCarriesH   whether that is h itself, not rounded
//   kColumns    biases of the sums with h that have a column of their own; the others are added to
//               those of x
//   kBounded    whether |h'| is at most max(1, |h|)
//
// A kernel supplies a Math policy: static functions exp, expm1, tanh, reciprocal, abs and where
// (an elementwise selection) on its value type, a floating-point scalar or a SIMD vector.
// Everything here runs in the accumulation type: float for 16-bit tensors.
#pragma once

#include <cmath>

#if defined(__CUDACC__)
#define LLTM_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define LLTM_HOST_DEVICE inline __attribute__((always_inline))
#endif

namespace lltm::cell {

/// The state of an element.
template <typename Value>
struct State {
  Value h;
  Value cell;
};

/// The standard library's functions on a scalar, on the host and in CUDA device code.
struct StandardMath {
  template <typename Value>
  static LLTM_HOST_DEVICE Value exp(Value x) {
    return std::exp(x);
  }
  template <typename Value>
  static LLTM_HOST_DEVICE Value expm1(Value x) {
    return std::expm1(x);
  }
  template <typename Value>
  static LLTM_HOST_DEVICE Value tanh(Value x) {
    return std::tanh(x);
  }
  template <typename Value>
  static LLTM_HOST_DEVICE Value reciprocal(Value x) {
    return Value(1) / x;
  }
  template <typename Value>
  static LLTM_HOST_DEVICE Value abs(Value x) {
    return std::abs(x);
  }
  template <typename Value>
  static LLTM_HOST_DEVICE Value where(bool condition, Value yes, Value no) {
    return condition ? yes : no;
  }
};

/// sigmoid(z) and its derivative. Both are computed from e = exp(-|z|), which cannot overflow, and
/// so keep their relative accuracy in both tails, where s*(1-s) would cancel.
template <typename Value>
struct Sigmoid {
  Value value;
  Value derivative;
};

/// Of e = exp(-|z|) and r = 1 / (1 + e).
template <typename Math, typename Value>
LLTM_HOST_DEVICE Sigmoid<Value> sigmoid_from(Value z, Value e, Value r) {
  return {Math::where(z >= Value(0), r, e * r), e * r * r};
}

template <typename Math, typename Value>
LLTM_HOST_DEVICE Sigmoid<Value> sigmoid(Value z) {
  const Value e = Math::exp(-Math::abs(z));
  return sigmoid_from<Math>(z, e, Math::reciprocal(Value(1) + e));
}

/// sigmoid(z) of a forget gate. The cell state is multiplied by it in every step, which adds up its
/// errors. Close to 1 it is computed as 1 - sigmoid(-z), because the sum 1 + e has lost the last
/// bits of e. A policy with a short reciprocal has an accurate one of 1 + e instead.
template <typename Math, typename Value>
LLTM_HOST_DEVICE Sigmoid<Value> forget_gate(Value z) {
  const Value e = Math::exp(-Math::abs(z));
  if constexpr (requires { Math::reciprocal_of_one_plus(z); }) {
    return sigmoid_from<Math>(z, e, Math::reciprocal_of_one_plus(e));
  } else {
    const Value r = Math::reciprocal(Value(1) + e);
    const Value of_minus_abs = e * r;
    return {Math::where(z >= Value(0), Value(1) - of_minus_abs, of_minus_abs), of_minus_abs * r};
  }
}

/// The value of sigmoid(z) alone, by the policy's own function if it has one.
template <typename Math, typename Value>
LLTM_HOST_DEVICE Value sigmoid_value(Value z) {
  if constexpr (requires { Math::sigmoid(z); }) {
    return Math::sigmoid(z);
  } else {
    return sigmoid<Math>(z).value;
  }
}

/// The same for the output gate. Its error ends in new_h, while the cell state adds up those of the
/// other gates from step to step, so a policy may have a shorter function for it.
template <typename Math, typename Value>
LLTM_HOST_DEVICE Value output_gate_value(Value z) {
  if constexpr (requires { Math::output_gate(z); }) {
    return Math::output_gate(z);
  } else {
    return sigmoid_value<Math>(z);
  }
}

/// tanh of a candidate, whose error the cell state adds up: a policy with a short tanh has an
/// accurate one, too.
template <typename Math, typename Value>
LLTM_HOST_DEVICE Value candidate_tanh(Value z) {
  if constexpr (requires { Math::accurate_tanh(z); }) {
    return Math::accurate_tanh(z);
  } else {
    return Math::tanh(z);
  }
}

}  // namespace lltm::cell
