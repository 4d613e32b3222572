// The epilogue of a tile of pre-activations: adds the bias, and computes the new state.
#pragma once

#include "pointwise.h"

namespace lltm::cpu {
namespace {

/// The numbers that a cell saves of one batch row for the state indices of a task, one by one.
template <typename Cell, typename real>
using CellRow = real[Cell::kSaved][Simd<real>::kLanes];

template <typename Cell, typename scalar_t>
void finish_cells(const CellParams<scalar_t>& params,
                  const CellRow<Cell, accumulate_t<scalar_t>>* z,
                  int64_t row,
                  int64_t rows,
                  int64_t index,
                  int64_t count) {
  using A = Access<scalar_t>;
  using V = Simd<typename A::real>;
  const int64_t state_size = params.h_and_input.state_size;
  V bias[Cell::kSaved];
  load_biases<Cell>(params.bias, params.bias_hh, index, state_size, count, bias);
  for (int64_t r = 0; r < rows; ++r) {
    V gates[Cell::kSaved];
    for (int gate = 0; gate < Cell::kSaved; ++gate) {
      gates[gate] = V::load(z[r][gate]) + bias[gate];
    }
    store_gates(
        gates, params.gates + (row + r) * Cell::kSaved * state_size + index, state_size, count);
    const int64_t offset = (row + r) * state_size + index;
    const auto state =
        Cell::template forward<SimdMath>(gates, load_cells(params.old_cell, offset, count));
    A::store(state.h, params.new_h + offset, count);
    store_cells(state.cell, params.new_cell, offset, count);
  }
}

}  // namespace
}  // namespace lltm::cpu
