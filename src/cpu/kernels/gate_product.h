// d_gates @ weights: the gradients of old_h and input, each from its columns of weights.
#pragma once

#include "panel_product.h"

namespace lltm::cpu {
namespace {

// A single row of d_gates uses every weight once. The weights are then read row by row, in segments
// that are long enough for the hardware prefetcher.
constexpr int64_t kColumnsOfSingleRow = 256;

template <typename scalar_t>
int64_t gate_product_tasks(const GateProductParams<scalar_t>& params) {
  if (params.row_count == 1) {
    return ceil_div(params.columns, kColumnsOfSingleRow);
  }
  return ceil_div(params.columns, kPanelWidth<scalar_t>) * params.row_chunks;
}

template <int gates, typename scalar_t>
LLTM_INLINE void add_weight_rows(const scalar_t* d_gates,
                                 const scalar_t* weights,
                                 int64_t stride,
                                 accumulate_t<scalar_t>* sums,
                                 int64_t columns) {
  using A = Access<scalar_t>;
  using real = typename A::real;
  using V = Simd<real>;
  for (int64_t column = 0; column < columns; column += V::kLanes) {
    const int64_t count = smaller(V::kLanes, columns - column);
    V sum = V::load(sums + column);
    for (int g = 0; g < gates; ++g) {
      sum = sum + V(real(d_gates[g])) * A::load(weights + g * stride + column, count);
    }
    sum.store(sums + column);
  }
}

template <typename scalar_t>
void gate_product_of_single_row(const GateProductParams<scalar_t>& params,
                                int64_t begin,
                                int64_t end) {
  using A = Access<scalar_t>;
  using real = typename A::real;
  using V = Simd<real>;
  constexpr int kGatesAtOnce = 8;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t column = task * kColumnsOfSingleRow;
    const int64_t columns = smaller(kColumnsOfSingleRow, params.columns - column);
    // Two levels of sums: see kDepth.
    alignas(64) real total[kColumnsOfSingleRow] = {};
    for (int64_t block = 0; block < params.gates; block += kDepth) {
      alignas(64) real partial[kColumnsOfSingleRow] = {};
      const int64_t last = smaller(block + kDepth, params.gates);
      int64_t gate = block;
      const auto weights = [&] { return params.weights + gate * params.weights_stride + column; };
      for (; gate + kGatesAtOnce <= last; gate += kGatesAtOnce) {
        add_weight_rows<kGatesAtOnce>(
            params.rows[0].d_gates + gate, weights(), params.weights_stride, partial, columns);
      }
      for (; gate < last; ++gate) {
        add_weight_rows<1>(
            params.rows[0].d_gates + gate, weights(), params.weights_stride, partial, columns);
      }
      for (int64_t i = 0; i < columns; ++i) {
        total[i] += partial[i];
      }
    }
    for (int64_t i = 0; i < columns; i += V::kLanes) {
      A::store(
          V::load(total + i), params.rows[0].out + column + i, smaller(V::kLanes, columns - i));
    }
  }
}

// With this many rows, the sums of a panel stay in the L1 cache.
constexpr int64_t kMaxRowsPerChunk = 128;

template <typename scalar_t>
void gate_product_by_panels(const GateProductParams<scalar_t>& params, int64_t begin, int64_t end) {
  using A = Access<scalar_t>;
  using real = typename A::real;
  using V = Simd<real>;
  constexpr int64_t width = kPanelWidth<scalar_t>;
  alignas(64) real totals[kMaxRowsPerChunk][width];
  for (int64_t task = begin; task < end; ++task) {
    // The rows of a chunk stay in the L2 cache from one panel to the next.
    const int64_t panels = ceil_div(params.columns, width);
    const int64_t panel = task % panels;
    const int64_t count = smaller(width, params.columns - panel * width);
    const int64_t chunk = task / panels;
    const int64_t first_row = params.row_count * chunk / params.row_chunks;
    const int64_t rows = params.row_count * (chunk + 1) / params.row_chunks - first_row;
    const GateProductRow<scalar_t>* const chunk_rows = params.rows + first_row;
    const ProductRegisters<scalar_t> registers(rows);
    multiply_by_panel<scalar_t, kMaxVectors>(
        rows,
        params.gates,
        params.panels + panel * column_panel_size<scalar_t>(params.gates),
        [&](int64_t row) { return chunk_rows[row].d_gates; },
        PanelSums{.start = [](int64_t /*row*/, int /*v*/) { return V(0); },
                  .partial = [&](int64_t row, int v) { return &totals[row][v * V::kLanes]; },
                  .finish =
                      [&](int64_t row, const V(&sums)[kMaxVectors]) {
                        scalar_t* const out = chunk_rows[row].out + panel * width;
                        for (int v = 0; v < kMaxVectors; ++v) {
                          A::store(sums[v],
                                   out + v * V::kLanes,
                                   clamp(count - v * V::kLanes, 0, V::kLanes));
                        }
                      }});
  }
}

/// Calls function.operator()<height>(row) for rows from `first` to `last`, with the first of the
/// heights as often as it fits, and then with the next ones.
template <int... heights, typename Function>
LLTM_INLINE void for_each_tile(int64_t first, int64_t last, const Function& function) {
  const auto tiles_of = [&]<int height>() __attribute__((always_inline)) {
    for (; first + height <= last; first += height) {
      function.template operator()<height>(first);
    }
  };
  (tiles_of.template operator()<heights>(), ...);
}

/// Reads the weights in place, or copies them block by block.
template <typename scalar_t>
void gate_product_by_blocks(const GateProductParams<scalar_t>& params, int64_t begin, int64_t end) {
  using O = Operand<scalar_t>;
  using real = typename O::real;
  constexpr int64_t width = kPanelWidth<scalar_t>;
  alignas(64) real panel[kDepth * width];
  alignas(64) real sums[kMaxRowsPerChunk][width];
  for (int64_t task = begin; task < end; ++task) {
    const int64_t column = task / params.row_chunks * width;
    const int64_t count = smaller(width, params.columns - column);
    const int64_t chunk = task % params.row_chunks;
    const int64_t first_row = params.row_count * chunk / params.row_chunks;
    const int64_t last_row = params.row_count * (chunk + 1) / params.row_chunks;
    for (int64_t gate = 0; gate < params.gates; gate += kTermsPerBlock<scalar_t>) {
      const int64_t terms = smaller(kTermsPerBlock<scalar_t>, params.gates - gate);
      const scalar_t* from = params.weights + gate * params.weights_stride + column;
      const real* vectors = panel;
      int64_t stride = width;
      // A copy pays off from the second tile of rows on, because rows of weights are far apart and
      // collide in the cache.
      if (std::is_same_v<real, scalar_t> && last_row - first_row <= kRows && count == width) {
        vectors = reinterpret_cast<const real*>(from);
        stride = params.weights_stride;
      } else {
        pack_panel(from, params.weights_stride, terms, count, panel);
      }
      // Rows of weights are too far apart for the hardware prefetcher.
      int64_t ahead = gate + terms;
      const int64_t ahead_per_row = ceil_div(terms, last_row - first_row);
      const auto prefetch = [&](int64_t rows) __attribute__((always_inline)) {
        const int64_t end = smaller(ahead + rows * ahead_per_row, params.gates);
        for (; ahead < end; ++ahead) {
          const scalar_t* row = params.weights + ahead * params.weights_stride + column;
          for (int64_t at = 0; at < count; at += 64 / sizeof(scalar_t)) {
            __builtin_prefetch(row + at, 0, 2);
          }
        }
      };
      for_each_tile<kRows, 3, 1>(
          first_row, last_row, [&]<int rows>(int64_t row) __attribute__((always_inline)) {
            const scalar_t* d_gates[rows];
            for (int r = 0; r < rows; ++r) {
              d_gates[r] = params.rows[row + r].d_gates + gate;
            }
            alignas(64) real scratch[rows][kDepth];
            const typename O::Scalar* a[rows];
            scalars_of_rows<scalar_t>(d_gates, terms, scratch, a);
            prefetch(rows);
            typename O::Vector tile[rows][kMaxVectors];
            multiply<scalar_t, 1>(depth_of<scalar_t>(terms), a, vectors, stride, tile);
            finish_block<scalar_t>(
                tile,
                gate == 0,
                gate + terms == params.gates,
                sums[row - first_row],
                width,
                [&](int64_t r) { return params.rows[row + r].out + column; },
                rows,
                count);
          });
    }
  }
}

template <typename scalar_t>
void gate_product(const GateProductParams<scalar_t>& params, int64_t begin, int64_t end) {
  if (params.row_count == 1) {
    gate_product_of_single_row(params, begin, end);
  } else if (params.panels) {
    gate_product_by_panels(params, begin, end);
  } else {
    gate_product_by_blocks(params, begin, end);
  }
}

}  // namespace
}  // namespace lltm::cpu
