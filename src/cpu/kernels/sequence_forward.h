// The steps of a sequence: z = z_x + h @ W_h.T, and the cell while z is in registers. A lane is a
// state index. The gates of a group of state indices are side by side in the panels of
// weights and in z, so that a tile has all that the cell needs. z has the numbers that the cell
// saves: the product with the input fills those of kOfInput, the product with h is added to those
// of kOfGate.
#pragma once

#include "panel_product.h"
#include "pointwise.h"

namespace lltm::cpu {
namespace {

template <typename scalar_t>
int64_t groups(int64_t state_size) {
  return ceil_div(state_size, Simd<accumulate_t<scalar_t>>::kLanes);
}

template <typename Cell, typename scalar_t>
int64_t gate_panel_size(int64_t terms) {
  return Cell::kGates * Simd<accumulate_t<scalar_t>>::kLanes * depth_of<scalar_t>(terms);
}

template <typename Cell, typename scalar_t>
int64_t gate_row_size(int64_t state_size) {
  return Cell::kSaved * Simd<accumulate_t<scalar_t>>::kLanes * groups<scalar_t>(state_size);
}

/// Panel g holds the rows of weights of the g-th `lanes` state indices, as [operand][gate][lane];
/// lanes beyond the state are zero.
template <typename Cell, typename scalar_t>
void pack_gates(const PackGatesParams<scalar_t>& params, int64_t begin, int64_t end) {
  using O = Operand<scalar_t>;
  using real = typename O::real;
  using V = Simd<real>;
  constexpr int64_t width = Cell::kGates * V::kLanes;
  const int64_t depth = depth_of<scalar_t>(params.terms);
  for (int64_t group = begin; group < end; ++group) {
    const int64_t index = group * V::kLanes;
    const int64_t count = smaller(V::kLanes, params.state_size - index);
    for (int gate = 0; gate < Cell::kGates; ++gate) {
      transpose_rows<scalar_t>(
          params.weights + (gate * params.state_size + index) * params.weights_stride,
          params.weights_stride,
          count,
          params.terms,
          params.panels + group * depth * width + gate * V::kLanes,
          width);
    }
  }
}

/// z_x = input @ W_x.T + bias. Of what only h is added to, the bias alone.
template <typename Cell, typename scalar_t>
void input_gates(const InputGatesParams<scalar_t>& params, int64_t begin, int64_t end) {
  using A = Access<scalar_t>;
  using V = Simd<typename A::real>;
  static_assert(Cell::kInputs == Cell::kGates, "the panels of both sides are alike");
  constexpr int64_t width = Cell::kGates * V::kLanes;
  const int64_t depth = depth_of<scalar_t>(params.input_features);
  const ProductRegisters<scalar_t> registers(params.row_count);
  for (int64_t group = begin; group < end; ++group) {
    const int64_t index = group * V::kLanes;
    const int64_t count = smaller(V::kLanes, params.state_size - index);
    V bias[Cell::kSaved];
    load_biases<Cell>(params.bias, params.bias_hh, index, params.state_size, count, bias);
    const auto z_of = [&](int64_t row, int k) {
      return params.rows[row].z + (group * Cell::kSaved + k) * V::kLanes;
    };
    multiply_by_panel<scalar_t, Cell::kInputs>(
        params.row_count,
        params.input_features,
        params.panels + group * depth * width,
        [&](int64_t row) { return params.rows[row].input; },
        PanelSums{
            .start = [&](int64_t /*row*/, int input) { return bias[Cell::kOfInput[input]]; },
            .partial = [&](int64_t row, int input) { return z_of(row, Cell::kOfInput[input]); },
            .finish =
                [&](int64_t row, const V(&z)[Cell::kInputs]) {
                  for (int input = 0; input < Cell::kInputs; ++input) {
                    z[input].store(z_of(row, Cell::kOfInput[input]));
                  }
                  for (int k = 0; k < Cell::kSaved; ++k) {
                    if (place_in(Cell::kOfInput, k) < 0) {
                      bias[k].store(z_of(row, k));
                    }
                  }
                }});
  }
}

template <typename Cell, typename scalar_t>
void forward_step(const ForwardStepParams<scalar_t>& params, int64_t begin, int64_t end) {
  using A = Access<scalar_t>;
  using V = Simd<typename A::real>;
  constexpr int64_t width = Cell::kGates * V::kLanes;
  const int64_t state_size = params.state_size;
  const int64_t depth = depth_of<scalar_t>(state_size);
  const ProductRegisters<scalar_t> registers(params.row_count);
  for (int64_t group = begin; group < end; ++group) {
    const int64_t index = group * V::kLanes;
    const int64_t count = smaller(V::kLanes, state_size - index);
    const auto z_of = [&](int64_t row, int k) {
      return params.rows[row].z + (group * Cell::kSaved + k) * V::kLanes;
    };
    const auto sum_of = [&](int64_t row, int gate) { return z_of(row, Cell::kOfGate[gate]); };
    multiply_by_panel<scalar_t, Cell::kGates>(
        params.row_count,
        state_size,
        params.panels + group * depth * width,
        [&](int64_t row) { return params.rows[row].old_h; },
        PanelSums{.start = [&](int64_t row, int gate) { return V::load(sum_of(row, gate)); },
                  .partial = sum_of,
                  .finish =
                      [&](int64_t r, const V(&sums)[Cell::kGates]) {
                        const ForwardRow<scalar_t>& row = params.rows[r];
                        V z[Cell::kSaved];
                        for (int k = 0; k < Cell::kSaved; ++k) {
                          const int gate = place_in(Cell::kOfGate, k);
                          z[k] = gate < 0 ? V::load(z_of(r, k)) : sums[gate];
                        }
                        if (row.gates) {
                          store_gates(z, row.gates + index, state_size, count);
                        }
                        const auto state =
                            Cell::template forward<SimdMath>(z, V::load(row.cell + index));
                        state.cell.store(row.cell + index);
                        A::store(state.h, row.new_h + index, count);
                        if (row.new_cell) {
                          A::store(state.cell, row.new_cell + index, count);
                        }
                      }});
  }
}

}  // namespace
}  // namespace lltm::cpu
