// The cell for a panel of batch rows. Each lane is a row of the batch.
#pragma once

#include "cell_epilogue.h"
#include "packing.h"

namespace lltm::cpu {
namespace {

/// The most state indices, up to four, of which all gates fit the accumulators.
template <typename Cell, int vectors>
constexpr int kIndicesOfTile = 4 * Cell::kGates * vectors <= kAccumulators   ? 4
                               : 2 * Cell::kGates * vectors <= kAccumulators ? 2
                                                                             : 1;

/// Adds the biases to the sums of a panel and computes its new states. sums[k][i] has a vector
/// of batch rows for each of `count` state indices.
template <typename Cell, int vectors, typename scalar_t, typename real>
LLTM_INLINE void finish_panel(
    const CellParams<scalar_t>& params,
    const real (&sums)[Cell::kSaved][Simd<real>::kLanes][vectors * Simd<real>::kLanes],
    int64_t row,
    int64_t rows,
    int64_t index,
    int64_t count) {
  using V = Simd<real>;
  for (int v = 0; v < vectors && v * V::kLanes < rows; ++v) {
    alignas(64) CellRow<Cell, real> z[V::kLanes];
    for (int gate = 0; gate < Cell::kSaved; ++gate) {
      typename V::Vector square[V::kLanes];
      for (int i = 0; i < V::kLanes; ++i) {
        square[i] = V::load(sums[gate][i] + v * V::kLanes).value;
      }
      transpose<real>(square);
      for (int i = 0; i < V::kLanes; ++i) {
        V(square[i]).store(z[i][gate]);
      }
    }
    const int64_t rows_here = smaller(V::kLanes, rows - v * V::kLanes);
    finish_cells<Cell>(params, z, row + v * V::kLanes, rows_here, index, count);
  }
}

/// One task: all gates of `count` state indices, beginning with `index`, for one panel.
template <typename Cell, int vectors, typename scalar_t>
void cell_panel(const CellParams<scalar_t>& params,
                const accumulate_t<scalar_t>* panel,
                int64_t row,
                int64_t rows,
                int64_t index,
                int64_t count) {
  using O = Operand<scalar_t>;
  using real = typename O::real;
  using V = Simd<real>;
  // A tile holds all gates of `indices` state indices.
  constexpr int indices = smaller(kIndicesOfTile<Cell, vectors>, V::kLanes);
  constexpr int tile_rows = Cell::kGates * indices;
  constexpr int width = vectors * V::kLanes;
  const int64_t state_size = params.h_and_input.state_size;
  alignas(64) real sums[Cell::kSaved][V::kLanes][width];
  // The epilogue also computes the lanes beyond the state, and what only the inputs are added to.
  if (count < V::kLanes || (!Cell::kAdds && params.h_and_input.input_features == 0)) {
    std::memset(sums, 0, sizeof(sums));
  }
  alignas(64) real scratch[tile_rows][kDepth];
  const auto add_segment = [&](const WeightBlock<scalar_t>& weights,
                               const auto& of,
                               const real* operands,
                               int64_t terms) {
    for (int64_t term = 0; term < terms; term += kTermsPerBlock<scalar_t>) {
      const int64_t terms_here = smaller(kTermsPerBlock<scalar_t>, terms - term);
      // Whether nothing has been added to number k yet.
      const auto is_first = [&](int k) {
        const bool is_of_input_alone = !Cell::kAdds && place_in(Cell::kOfGate, k) < 0;
        return term == 0 && (&weights == &params.weight_hh || is_of_input_alone);
      };
      for (int64_t i = 0; i < count; i += indices) {
        const scalar_t* from[tile_rows];
        for (int r = 0; r < tile_rows; ++r) {
          // Past the last state index, the last one is recomputed and not stored.
          const int64_t at = index + smaller(i + r % indices, count - 1);
          from[r] = weights.data + (r / indices * state_size + at) * weights.stride + term;
        }
        const typename O::Scalar* a[tile_rows];
        scalars_of_rows<scalar_t>(from, terms_here, scratch, a);
        typename O::Vector tile[tile_rows][vectors];
        multiply<scalar_t, 1>(depth_of<scalar_t>(terms_here),
                              a,
                              operands + depth_of<scalar_t>(term) * width,
                              width,
                              tile);
        for (int r = 0; r < tile_rows; ++r) {
          const int k = Cell::kAdds ? r / indices : of[r / indices];
          const bool first = is_first(k);
          real* const to_rows = &sums[0][0][0] + (k * V::kLanes + i + r % indices) * width;
          for (int v = 0; v < vectors; ++v) {
            real* const to = to_rows + v * V::kLanes;
            V(first ? V(tile[r][v]) : V::load(to) + V(tile[r][v])).store(to);
          }
        }
      }
    }
  };
  add_segment(params.weight_hh, Cell::kOfGate, panel, state_size);
  add_segment(params.weight_ih,
              Cell::kOfInput,
              panel + depth_of<scalar_t>(state_size) * width,
              params.h_and_input.input_features);
  finish_panel<Cell, vectors>(params, sums, row, rows, index, count);
}

}  // namespace
}  // namespace lltm::cpu
