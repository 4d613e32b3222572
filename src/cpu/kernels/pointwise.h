// A cell's pointwise math: the new state from the pre-activations, and its gradients.
#pragma once

#include "access.h"
#include "kernels.h"
#include "simd_math.h"

namespace lltm::cpu {
namespace {

/// The place of k in the kOfInput or kOfGate of a cell, -1 if it has none.
template <int count>
constexpr int place_in(const int (&of)[count], int k) {
  for (int place = 0; place < count; ++place) {
    if (of[place] == k) {
      return place;
    }
  }
  return -1;
}

/// Loads the gates of `count` state indices; `from` points to the first gate.
template <typename scalar_t, int gates>
LLTM_INLINE void load_gates(const scalar_t* from,
                            int64_t state_size,
                            int64_t count,
                            Simd<accumulate_t<scalar_t>> (&z)[gates]) {
  for (int gate = 0; gate < gates; ++gate) {
    z[gate] = Access<scalar_t>::load(from + gate * state_size, count);
  }
}
template <typename scalar_t, int gates>
LLTM_INLINE void store_gates(const Simd<accumulate_t<scalar_t>> (&z)[gates],
                             scalar_t* to,
                             int64_t state_size,
                             int64_t count) {
  for (int gate = 0; gate < gates; ++gate) {
    Access<scalar_t>::store(z[gate], to + gate * state_size, count);
  }
}

/// Loads the cell state of `count` elements, which is given.
template <typename scalar_t>
LLTM_INLINE Simd<accumulate_t<scalar_t>> load_cells(const CellsIn<scalar_t>& cells,
                                                    int64_t offset,
                                                    int64_t count) {
  return cells.exact ? Simd<accumulate_t<scalar_t>>::load(cells.exact + offset, count)
                     : Access<scalar_t>::load(cells.rounded + offset, count);
}
template <typename scalar_t>
LLTM_INLINE void store_cells(Simd<accumulate_t<scalar_t>> value,
                             const CellsOut<scalar_t>& cells,
                             int64_t offset,
                             int64_t count) {
  if (cells.exact) {
    value.store(cells.exact + offset, count);
  }
  if (cells.rounded) {
    Access<scalar_t>::store(value, cells.rounded + offset, count);
  }
}

/// Loads the biases of what is saved: those of the inputs, or of both sides, plus those of the
/// gates. Either may be null.
template <typename Cell, typename scalar_t>
LLTM_INLINE void load_biases(const scalar_t* bias,
                             const scalar_t* bias_hh,
                             int64_t index,
                             int64_t state_size,
                             int64_t count,
                             Simd<accumulate_t<scalar_t>> (&biases)[Cell::kSaved]) {
  using A = Access<scalar_t>;
  using V = Simd<typename A::real>;
  for (int k = 0; k < Cell::kSaved; ++k) {
    const int input = place_in(Cell::kOfInput, k), gate = place_in(Cell::kOfGate, k);
    biases[k] = bias && input >= 0 ? A::load(bias + input * state_size + index, count) : V(0);
    if (!Cell::kAdds && bias_hh && gate >= 0) {
      biases[k] = biases[k] + A::load(bias_hh + gate * state_size + index, count);
    }
  }
}

template <typename Cell, typename scalar_t>
void forward_rows(const ForwardParams<scalar_t>& params, int64_t begin, int64_t end) {
  using A = Access<scalar_t>;
  using V = Simd<typename A::real>;
  const int64_t state_size = params.state_size;
  for (int64_t row = begin; row < end; ++row) {
    const scalar_t* gates = params.gates + row * Cell::kSaved * state_size;
    const int64_t offset = row * state_size;
    for (int64_t column = 0; column < state_size; column += V::kLanes) {
      const int64_t count = smaller(V::kLanes, state_size - column);
      V z[Cell::kSaved];
      load_gates(gates + column, state_size, count, z);
      const auto state =
          Cell::template forward<SimdMath>(z, load_cells(params.old_cell, offset + column, count));
      A::store(state.h, params.new_h + offset + column, count);
      store_cells(state.cell, params.new_cell, offset + column, count);
    }
  }
}

template <typename Cell, typename scalar_t>
void backward_rows(const BackwardParams<scalar_t>& params, int64_t begin, int64_t end) {
  using A = Access<scalar_t>;
  using V = Simd<typename A::real>;
  const int64_t state_size = params.state_size;
  const auto load_or_zero = [](const scalar_t* from, int64_t offset, int64_t count) {
    return from ? A::load(from + offset, count) : V(0);
  };
  for (int64_t row = begin; row < end; ++row) {
    const scalar_t* gates = params.gates + row * Cell::kSaved * state_size;
    for (int64_t column = 0; column < state_size; column += V::kLanes) {
      const int64_t count = smaller(V::kLanes, state_size - column);
      const int64_t offset = row * state_size + column;
      V z[Cell::kSaved], d_z[Cell::kSaved];
      load_gates(gates + column, state_size, count, z);
      const V old_cell = Cell::kReadsOldCell ? load_or_zero(params.old_cell, offset, count) : V(0);
      const auto by = Cell::template derivatives<SimdMath>(
          z, old_cell, A::load(params.new_cell + offset, count));
      const V d_old_cell = Cell::backward(by,
                                          load_or_zero(params.grad_h, offset, count),
                                          load_or_zero(params.grad_cell, offset, count),
                                          d_z);
      if (params.d_gates) {
        store_gates(
            d_z, params.d_gates + row * Cell::kSaved * state_size + column, state_size, count);
      }
      if (params.d_old_cell) {
        A::store(d_old_cell, params.d_old_cell + offset, count);
      }
    }
  }
}

}  // namespace
}  // namespace lltm::cpu
