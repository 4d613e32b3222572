// The cell's pointwise math: the new state from the pre-activations, and its gradients.
#pragma once

#include "../../cell/lltm.h"
#include "access.h"
#include "kernels.h"
#include "simd_math.h"

namespace lltm::cpu {
namespace {

constexpr int kGates = 3;

/// Loads the three gates of `count` state indices; `from` points to the input gate.
template <typename scalar_t>
LLTM_INLINE cell::Gates<Simd<accumulate_t<scalar_t>>> load_gates(const scalar_t* from,
                                                                 int64_t state_size,
                                                                 int64_t count) {
  using A = Access<scalar_t>;
  return {A::load(from, count),
          A::load(from + state_size, count),
          A::load(from + 2 * state_size, count)};
}
template <typename scalar_t>
LLTM_INLINE void store_gates(const cell::Gates<Simd<accumulate_t<scalar_t>>>& gates,
                             scalar_t* to,
                             int64_t state_size,
                             int64_t count) {
  using A = Access<scalar_t>;
  A::store(gates.input_gate, to, count);
  A::store(gates.output_gate, to + state_size, count);
  A::store(gates.candidate, to + 2 * state_size, count);
}

template <typename scalar_t>
void forward_rows(const ForwardParams<scalar_t>& params, int64_t begin, int64_t end) {
  using A = Access<scalar_t>;
  using V = Simd<typename A::real>;
  const int64_t state_size = params.state_size;
  for (int64_t row = begin; row < end; ++row) {
    const scalar_t* gates = params.gates + row * kGates * state_size;
    const int64_t offset = row * state_size;
    for (int64_t column = 0; column < state_size; column += V::kLanes) {
      const int64_t count = smaller(V::kLanes, state_size - column);
      const auto z = load_gates(gates + column, state_size, count);
      const auto state =
          cell::forward<SimdMath>(z, A::load(params.old_cell + offset + column, count));
      A::store(state.h, params.new_h + offset + column, count);
      A::store(state.cell, params.new_cell + offset + column, count);
    }
  }
}

template <typename scalar_t>
void backward_rows(const BackwardParams<scalar_t>& params, int64_t begin, int64_t end) {
  using A = Access<scalar_t>;
  using V = Simd<typename A::real>;
  const int64_t state_size = params.state_size;
  const auto load_or_zero = [](const scalar_t* from, int64_t offset, int64_t count) {
    return from ? A::load(from + offset, count) : V(0);
  };
  for (int64_t row = begin; row < end; ++row) {
    const scalar_t* gates = params.gates + row * kGates * state_size;
    for (int64_t column = 0; column < state_size; column += V::kLanes) {
      const int64_t count = smaller(V::kLanes, state_size - column);
      const int64_t offset = row * state_size + column;
      const auto z = load_gates(gates + column, state_size, count);
      const auto gradients =
          cell::backward<SimdMath>(z,
                                   A::load(params.new_cell + offset, count),
                                   load_or_zero(params.grad_h, offset, count),
                                   load_or_zero(params.grad_cell, offset, count));
      if (params.d_gates) {
        store_gates(gradients.gates,
                    params.d_gates + row * kGates * state_size + column,
                    state_size,
                    count);
      }
      if (params.d_old_cell) {
        A::store(gradients.old_cell, params.d_old_cell + offset, count);
      }
    }
  }
}

}  // namespace
}  // namespace lltm::cpu
