// The CPU kernels, for the instruction set of the file that includes this one. That file
//  - includes kernels.h and the standard headers that are used here, then
//  - selects the instruction set by `#pragma GCC target`, so that no inline function of a header is
//    compiled for it and then picked by the linker for a lesser machine,
//  - defines LLTM_SIMD_BYTES, and last the function that hands out make_kernels().
//
// One register tile serves the three products of the cell: a few scalars of one matrix, each
// broadcast, times a few vectors of the other. What is a vector is chosen so that the weights, the
// largest matrix, are read where they lie:
//
//   product                     broadcast       vectors along
//   gates = states @ weights.T  weights         the batch (states transposed into panels)
//   d_states = d_gates @ weights  d_gates       columns of weights
//   d_weights = d_gates.T @ states  d_gates     columns of the states
//
// Why not a library's product: see products.cpp, where that choice is made.
#pragma once

#include "../cell.h"
#include "simd.h"

namespace lltm::cpu {
namespace {

// Not std::min and std::clamp: see above, of inline functions.
constexpr int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
constexpr int64_t clamp(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : smaller(value, high);
}
constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// ---- the register tile --------------------------------------------------------------------------

// 16 vector registers below AVX-512, 32 there: accumulators, a row of vectors and the broadcast.
constexpr int kAccumulators = LLTM_SIMD_BYTES == 64 ? 24 : 12;
constexpr int kMaxVectors = LLTM_SIMD_BYTES == 64 ? 4 : 2;
constexpr int kRows = kAccumulators / kMaxVectors;
// A sum over more than this many products is made of partial sums, each of so many: the rounding
// error of a sum grows with its length. A panel of this depth stays in the first-level cache.
constexpr int64_t kDepth = 128;

/// sums[r][v] += sum over k < depth of a[r][k * step] * b[k][v], rows of b being b_stride apart.
template <int rows, int vectors, int step, typename real>
LLTM_INLINE void multiply(int64_t depth,
                          const real* const (&a)[rows],
                          const real* b,
                          int64_t b_stride,
                          typename Simd<real>::Vector (&sums)[rows][vectors]) {
  using V = Simd<real>;
  for (int64_t k = 0; k < depth; ++k) {
    typename V::Vector row[vectors];
    for (int v = 0; v < vectors; ++v) {
      row[v] = V::load(b + k * b_stride + v * V::kLanes).value;
    }
    for (int r = 0; r < rows; ++r) {
      const typename V::Vector scalar = V(a[r][k * step]).value;
      for (int v = 0; v < vectors; ++v) {
        sums[r][v] += scalar * row[v];
      }
    }
  }
}

/// Transposes a square of vectors in registers, by exchanging ever larger blocks.
template <typename real, int block = 1>
LLTM_INLINE void transpose(typename Simd<real>::Vector (&square)[Simd<real>::kLanes]) {
  using V = Simd<real>;
  if constexpr (block < V::kLanes) {
    typename V::IntegerVector low;
    typename V::IntegerVector high;
    for (int lane = 0; lane < V::kLanes; ++lane) {
      low[lane] = lane & block ? V::kLanes + lane - block : lane;
      high[lane] = lane & block ? V::kLanes + lane : lane + block;
    }
    for (int i = 0; i < V::kLanes; ++i) {
      if (!(i & block)) {
        const auto a = square[i];
        const auto b = square[i + block];
        square[i] = __builtin_shuffle(a, b, low);
        square[i + block] = __builtin_shuffle(a, b, high);
      }
    }
    transpose<real, block * 2>(square);
  }
}

// ---- pointwise ----------------------------------------------------------------------------------

template <typename scalar_t>
void forward_rows(const ForwardParams<scalar_t>& params, int64_t begin, int64_t end) {
  using A = Access<scalar_t>;
  using V = Simd<typename A::real>;
  const int64_t state_size = params.state_size;
  for (int64_t row = begin; row < end; ++row) {
    const scalar_t* gates = params.gates + row * 3 * state_size;
    const int64_t offset = row * state_size;
    for (int64_t column = 0; column < state_size; column += V::kLanes) {
      const int64_t count = smaller(V::kLanes, state_size - column);
      const cell::Gates<V> z{A::load(gates + column, count),
                             A::load(gates + state_size + column, count),
                             A::load(gates + 2 * state_size + column, count)};
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
    const scalar_t* gates = params.gates + row * 3 * state_size;
    for (int64_t column = 0; column < state_size; column += V::kLanes) {
      const int64_t count = smaller(V::kLanes, state_size - column);
      const int64_t offset = row * state_size + column;
      const cell::Gates<V> z{A::load(gates + column, count),
                             A::load(gates + state_size + column, count),
                             A::load(gates + 2 * state_size + column, count)};
      const auto gradients =
          cell::backward<SimdMath>(z,
                                   A::load(params.new_cell + offset, count),
                                   load_or_zero(params.grad_h, offset, count),
                                   load_or_zero(params.grad_cell, offset, count));
      if (params.d_gates) {
        scalar_t* d_gates = params.d_gates + row * 3 * state_size + column;
        A::store(gradients.gates.input_gate, d_gates, count);
        A::store(gradients.gates.output_gate, d_gates + state_size, count);
        A::store(gradients.gates.candidate, d_gates + 2 * state_size, count);
      }
      if (params.d_old_cell) {
        A::store(gradients.old_cell, params.d_old_cell + offset, count);
      }
    }
  }
}

// ---- gates = states @ weights.T + bias, and the new state ---------------------------------------

/// Up to this batch a row costs less by itself, with vectors along the columns of weights, than a
/// whole panel of mostly empty lanes. Measured.
template <typename real>
constexpr int64_t kLargestRowwiseBatch = Simd<real>::kLanes / 2;

template <typename real>
bool cell_needs_panels(int64_t batch) {
  return batch > kLargestRowwiseBatch<real>;
}

template <typename real>
int64_t pack_tasks(const StateParams<real>& states) {
  return ceil_div(states.state_size + states.input_features, Simd<real>::kLanes);
}

/// Panel p holds the batch rows from p*width on as [column][row in panel]; rows beyond the batch
/// are zero. The last panel has only as many vectors as it needs.
template <typename real>
void pack_states(
    const StateParams<real>& states, int panel_vectors, real* panels, int64_t begin, int64_t end) {
  using V = Simd<real>;
  const int64_t columns = states.state_size + states.input_features;
  const int64_t full_width = panel_vectors * V::kLanes;
  const auto pack_segment =
      [&](const real* from, int64_t stride, int64_t first, int64_t count, int64_t column) {
        for (int64_t panel_row = 0; panel_row < states.batch; panel_row += full_width) {
          const int64_t rows_left = smaller(full_width, states.batch - panel_row);
          const int64_t width = ceil_div(rows_left, V::kLanes) * V::kLanes;
          real* to = panels + panel_row * columns + column * width;
          for (int64_t lane_row = 0; lane_row < width; lane_row += V::kLanes) {
            typename V::Vector square[V::kLanes];
            for (int i = 0; i < V::kLanes; ++i) {
              const int64_t row = panel_row + lane_row + i;
              square[i] = row < states.batch ? V::load(from + row * stride + first, count).value
                                             : typename V::Vector{};
            }
            transpose<real>(square);
            for (int i = 0; i < V::kLanes; ++i) {
              if (i < count) {
                V(square[i]).store(to + i * width + lane_row);
              }
            }
          }
        }
      };
  for (int64_t task = begin; task < end; ++task) {
    // The columns of a task may end those of old_h and begin those of input.
    const int64_t first = task * V::kLanes;
    const int64_t last = smaller(first + V::kLanes, columns);
    const int64_t boundary = clamp(states.state_size, first, last);
    if (first < boundary) {
      pack_segment(states.old_h, states.old_h_stride, first, boundary - first, first);
    }
    if (boundary < last) {
      pack_segment(states.input,
                   states.input_stride,
                   boundary - states.state_size,
                   last - boundary,
                   boundary);
    }
  }
}

template <typename real>
int64_t cell_tasks(const CellParams<real>& params) {
  const int64_t groups = ceil_div(params.states.state_size, Simd<real>::kLanes);
  return params.panels
             ? groups * ceil_div(params.states.batch, params.panel_vectors * Simd<real>::kLanes)
             : groups;
}

/// The pre-activations of one batch row for the state indices of a task, gate by gate.
template <typename real>
using CellRow = real[3][Simd<real>::kLanes];

/// Adds the bias, writes gates, and the new state.
template <typename real>
void finish_cells(const CellParams<real>& params,
                  const CellRow<real>* z,
                  int64_t row,
                  int64_t rows,
                  int64_t index,
                  int64_t count) {
  using V = Simd<real>;
  const int64_t state_size = params.states.state_size;
  V bias[3];
  for (int gate = 0; gate < 3; ++gate) {
    bias[gate] = params.bias ? V::load(params.bias + gate * state_size + index, count) : V(0);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const cell::Gates<V> gates{
        V::load(z[r][0]) + bias[0], V::load(z[r][1]) + bias[1], V::load(z[r][2]) + bias[2]};
    real* to = params.gates + (row + r) * 3 * state_size + index;
    gates.input_gate.store(to, count);
    gates.output_gate.store(to + state_size, count);
    gates.candidate.store(to + 2 * state_size, count);
    const int64_t offset = (row + r) * state_size + index;
    const auto state = cell::forward<SimdMath>(gates, V::load(params.old_cell + offset, count));
    state.h.store(params.new_h + offset, count);
    state.cell.store(params.new_cell + offset, count);
  }
}

/// One task: `count` state indices from `index` on, with their three gates, for one panel.
template <int vectors, typename real>
void cell_panel(const CellParams<real>& params,
                const real* panel,
                int64_t row,
                int64_t rows,
                int64_t index,
                int64_t count) {
  using V = Simd<real>;
  // A tile has all three gates of `indices` state indices.
  constexpr int indices = smaller(vectors * 12 <= kAccumulators ? 4 : 2, V::kLanes);
  constexpr int width = vectors * V::kLanes;
  const int64_t state_size = params.states.state_size;
  const int64_t columns = state_size + params.states.input_features;
  alignas(64) real sums[3][V::kLanes][width];
  for (int64_t column = 0; column < columns; column += kDepth) {
    const int64_t depth = smaller(kDepth, columns - column);
    for (int64_t i = 0; i < count; i += indices) {
      const real* a[3 * indices];
      for (int r = 0; r < 3 * indices; ++r) {
        // Past the last state index the last is computed again, and not stored.
        const int64_t at = index + smaller(i + r % indices, count - 1);
        a[r] = params.weights + (r / indices * state_size + at) * params.weights_stride + column;
      }
      typename V::Vector tile[3 * indices][vectors] = {};
      multiply<3 * indices, vectors, 1>(depth, a, panel + column * width, width, tile);
      for (int r = 0; r < 3 * indices; ++r) {
        for (int v = 0; v < vectors; ++v) {
          real* to = &sums[r / indices][i + r % indices][v * V::kLanes];
          V(column ? V::load(to) + V(tile[r][v]) : V(tile[r][v])).store(to);
        }
      }
    }
  }
  for (int v = 0; v < vectors && v * V::kLanes < rows; ++v) {
    alignas(64) CellRow<real> z[V::kLanes];
    for (int gate = 0; gate < 3; ++gate) {
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
    finish_cells(params, z, row + v * V::kLanes, rows_here, index, count);
  }
}

/// sums[b][r] += the dot products of `batch` rows and `rows` rows.
template <int batch, int rows, typename real>
LLTM_INLINE void dot(int64_t depth,
                     const real* const (&x)[batch],
                     const real* const (&w)[rows],
                     Simd<real> (&sums)[batch][rows]) {
  using V = Simd<real>;
  const auto add = [&](int64_t k, int64_t count) __attribute__((always_inline)) {
    V of_x[batch];
    for (int b = 0; b < batch; ++b) {
      of_x[b] = V::load(x[b] + k, count);
    }
    for (int r = 0; r < rows; ++r) {
      const V of_w = V::load(w[r] + k, count);
      for (int b = 0; b < batch; ++b) {
        sums[b][r] = sums[b][r] + of_x[b] * of_w;
      }
    }
  };
  int64_t k = 0;
  for (; k + V::kLanes <= depth; k += V::kLanes) {
    add(k, V::kLanes);
  }
  if (k < depth) {
    add(k, depth - k);
  }
}

template <typename real>
LLTM_INLINE real sum_lanes(Simd<real> x) {
  using V = Simd<real>;
  for (int half = V::kLanes / 2; half > 0; half /= 2) {
    typename V::IntegerVector other;
    for (int lane = 0; lane < V::kLanes; ++lane) {
      other[lane] = lane ^ half;
    }
    x = x + V(__builtin_shuffle(x.value, other));
  }
  return x.value[0];
}

template <int batch, typename real>
void cell_rowwise(const CellParams<real>& params, int64_t row, int64_t index, int64_t count) {
  using V = Simd<real>;
  constexpr int kWeightRows = smaller(4, V::kLanes);
  const StateParams<real>& states = params.states;
  alignas(64) CellRow<real> z[batch] = {};
  const real* h[batch];
  const real* x[batch];
  for (int b = 0; b < batch; ++b) {
    h[b] = states.old_h + (row + b) * states.old_h_stride;
    x[b] = states.input + (row + b) * states.input_stride;
  }
  for (int gate = 0; gate < 3; ++gate) {
    for (int64_t i = 0; i < count; i += kWeightRows) {
      const real* w[kWeightRows];
      const real* w_of_input[kWeightRows];
      for (int r = 0; r < kWeightRows; ++r) {
        const int64_t at = index + smaller(i + r, count - 1);
        w[r] = params.weights + (gate * states.state_size + at) * params.weights_stride;
        w_of_input[r] = w[r] + states.state_size;
      }
      V sums[batch][kWeightRows];
      for (auto& of_row : sums) {
        for (V& sum : of_row) {
          sum = V(0);
        }
      }
      dot<batch, kWeightRows>(states.state_size, h, w, sums);
      dot<batch, kWeightRows>(states.input_features, x, w_of_input, sums);
      for (int b = 0; b < batch; ++b) {
        for (int r = 0; r < kWeightRows; ++r) {
          z[b][gate][i + r] = sum_lanes(sums[b][r]);
        }
      }
    }
  }
  finish_cells(params, z, row, batch, index, count);
}

template <typename real>
void cell(const CellParams<real>& params, int64_t begin, int64_t end) {
  using V = Simd<real>;
  const StateParams<real>& states = params.states;
  const int64_t width = params.panels ? params.panel_vectors * V::kLanes : states.batch;
  const int64_t panels = ceil_div(states.batch, width);
  for (int64_t task = begin; task < end; ++task) {
    // Neighbouring tasks share the rows of weights.
    const int64_t index = task / panels * V::kLanes;
    const int64_t count = smaller(V::kLanes, states.state_size - index);
    if (!params.panels) {
      int64_t row = 0;
      for (; row + 2 <= states.batch; row += 2) {
        cell_rowwise<2>(params, row, index, count);
      }
      if (row < states.batch) {
        cell_rowwise<1>(params, row, index, count);
      }
      continue;
    }
    const int64_t row = task % panels * width;
    const int64_t rows = smaller(width, states.batch - row);
    const real* panel = params.panels + row * (states.state_size + states.input_features);
    switch (ceil_div(rows, V::kLanes)) {
      case 1:
        cell_panel<1>(params, panel, row, rows, index, count);
        break;
      case 2:
        cell_panel<2>(params, panel, row, rows, index, count);
        break;
      case 3:
        cell_panel < kMaxVectors<3 ? kMaxVectors : 3>(params, panel, row, rows, index, count);
        break;
      default:
        cell_panel<kMaxVectors>(params, panel, row, rows, index, count);
    }
  }
}

// ---- d_states = d_gates @ weights ---------------------------------------------------------------

// A single row of d_gates uses every weight once: it is read row after row of weights, in stretches
// that are long enough to be prefetched.
constexpr int64_t kColumnsOfSingleRow = 256;

template <typename real>
int64_t state_gradient_tasks(const StateGradientParams<real>& params) {
  if (params.batch == 1) {
    return ceil_div(params.columns, kColumnsOfSingleRow);
  }
  return ceil_div(params.columns, kMaxVectors * Simd<real>::kLanes) * params.row_chunks;
}

template <int gates, typename real>
LLTM_INLINE void add_weight_rows(
    const real* d_gates, const real* weights, int64_t stride, real* sums, int64_t columns) {
  using V = Simd<real>;
  for (int64_t column = 0; column < columns; column += V::kLanes) {
    const int64_t count = smaller(V::kLanes, columns - column);
    V sum = V::load(sums + column);
    for (int g = 0; g < gates; ++g) {
      sum = sum + V(d_gates[g]) * V::load(weights + g * stride + column, count);
    }
    sum.store(sums + column);
  }
}

template <typename real>
void state_gradient_of_single_row(const StateGradientParams<real>& params,
                                  int64_t begin,
                                  int64_t end) {
  constexpr int kGates = 8;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t column = task * kColumnsOfSingleRow;
    const int64_t columns = smaller(kColumnsOfSingleRow, params.columns - column);
    real* out = params.out + column;
    // Two levels of sums, as everywhere: see kDepth.
    alignas(64) real total[kColumnsOfSingleRow] = {};
    for (int64_t block = 0; block < params.gates; block += kDepth) {
      alignas(64) real partial[kColumnsOfSingleRow] = {};
      const int64_t last = smaller(block + kDepth, params.gates);
      int64_t gate = block;
      const auto weights = [&] { return params.weights + gate * params.weights_stride + column; };
      for (; gate + kGates <= last; gate += kGates) {
        add_weight_rows<kGates>(
            params.d_gates + gate, weights(), params.weights_stride, partial, columns);
      }
      for (; gate < last; ++gate) {
        add_weight_rows<1>(
            params.d_gates + gate, weights(), params.weights_stride, partial, columns);
      }
      for (int64_t i = 0; i < columns; ++i) {
        total[i] += partial[i];
      }
    }
    std::memcpy(out, total, columns * sizeof(real));
  }
}

/// The first `columns` columns of the first `rows` rows of a tile, into `out` or added to it.
template <int tile_rows, typename real>
LLTM_INLINE void store_tile(const typename Simd<real>::Vector (&tile)[tile_rows][kMaxVectors],
                            real* out,
                            int64_t stride,
                            int64_t rows,
                            int64_t columns,
                            bool accumulate) {
  using V = Simd<real>;
  if (rows == tile_rows && columns >= kMaxVectors * V::kLanes && !accumulate) {
    for (int r = 0; r < tile_rows; ++r) {
      for (int v = 0; v < kMaxVectors; ++v) {
        V(tile[r][v]).store(out + r * stride + v * V::kLanes);
      }
    }
    return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int v = 0; v < kMaxVectors; ++v) {
      const int64_t count = clamp(columns - v * V::kLanes, 0, V::kLanes);
      real* to = out + r * stride + v * V::kLanes;
      (accumulate ? V::load(to, count) + V(tile[r][v]) : V(tile[r][v])).store(to, count);
    }
  }
}

template <int rows, typename real>
void state_gradient_tile(const StateGradientParams<real>& params,
                         const real* panel,
                         int64_t panel_stride,
                         int64_t gate,
                         int64_t depth,
                         int64_t row,
                         int64_t column) {
  const real* a[rows];
  for (int r = 0; r < rows; ++r) {
    a[r] = params.d_gates + (row + r) * params.gates + gate;
  }
  typename Simd<real>::Vector tile[rows][kMaxVectors] = {};
  multiply<rows, kMaxVectors, 1>(depth, a, panel, panel_stride, tile);
  store_tile<rows, real>(tile,
                         params.out + row * params.columns + column,
                         params.columns,
                         rows,
                         params.columns - column,
                         gate > 0);
}

template <typename real>
void state_gradient(const StateGradientParams<real>& params, int64_t begin, int64_t end) {
  using V = Simd<real>;
  constexpr int64_t width = kMaxVectors * V::kLanes;
  if (params.batch == 1) {
    state_gradient_of_single_row(params, begin, end);
    return;
  }
  alignas(64) real panel[kDepth * width];
  for (int64_t task = begin; task < end; ++task) {
    const int64_t column = task / params.row_chunks * width;
    const int64_t count = smaller(width, params.columns - column);
    const int64_t chunk = task % params.row_chunks;
    const int64_t first_row = params.batch * chunk / params.row_chunks;
    const int64_t last_row = params.batch * (chunk + 1) / params.row_chunks;
    // A copy pays from the second tile of rows on: rows of weights lie far apart, and collide in
    // the cache.
    const bool packed = last_row - first_row > kRows || count < width;
    for (int64_t gate = 0; gate < params.gates; gate += kDepth) {
      const int64_t depth = smaller(kDepth, params.gates - gate);
      const real* from = params.weights + gate * params.weights_stride + column;
      if (packed) {
        for (int64_t k = 0; k < depth; ++k) {
          for (int v = 0; v < kMaxVectors; ++v) {
            const int64_t here = clamp(count - v * V::kLanes, 0, V::kLanes);
            V::load(from + k * params.weights_stride + v * V::kLanes, here)
                .store(panel + k * width + v * V::kLanes);
          }
        }
      }
      const real* vectors = packed ? panel : from;
      const int64_t stride = packed ? width : params.weights_stride;
      int64_t row = first_row;
      for (; row + kRows <= last_row; row += kRows) {
        state_gradient_tile<kRows>(params, vectors, stride, gate, depth, row, column);
      }
      for (; row + 3 <= last_row; row += 3) {
        state_gradient_tile<3>(params, vectors, stride, gate, depth, row, column);
      }
      for (; row < last_row; ++row) {
        state_gradient_tile<1>(params, vectors, stride, gate, depth, row, column);
      }
    }
  }
}

// ---- d_weights = d_gates.T @ states -------------------------------------------------------------

template <typename real>
constexpr int64_t kWeightPanelWidth = kMaxVectors * Simd<real>::kLanes;
// Rows of the batch for which d_weights is read and written once; the panels of a group, so deep,
// stay in the second-level cache.
constexpr int64_t kWeightDepth = 2 * kDepth;
constexpr int64_t kPanelsPerGroup = 8;

/// None for a single row, whose outer product is written without.
template <typename real>
int64_t weight_panels(const StateParams<real>& states) {
  return states.batch == 1
             ? 0
             : ceil_div(states.state_size + states.input_features, kWeightPanelWidth<real>);
}

template <typename real>
int64_t weight_panels_size(const StateParams<real>& states) {
  return weight_panels(states) * kWeightPanelWidth<real> * smaller(states.batch, kWeightDepth);
}

/// Panel p holds the columns from p*width on of up to kWeightDepth rows, as [row][column in panel].
template <typename real>
void pack_weight_panels(const WeightGradientParams<real>& params,
                        int64_t row,
                        int64_t begin,
                        int64_t end) {
  constexpr int64_t width = kWeightPanelWidth<real>;
  const StateParams<real>& states = params.states;
  const int64_t depth = smaller(kWeightDepth, states.batch - row);
  const int64_t columns = states.state_size + states.input_features;
  for (int64_t panel = begin; panel < end; ++panel) {
    const int64_t first = panel * width;
    const int64_t last = smaller(first + width, columns);
    const int64_t boundary = clamp(states.state_size, first, last);
    real* to = params.panels + panel * width * smaller(states.batch, kWeightDepth);
    for (int64_t k = 0; k < depth; ++k, to += width) {
      const real* h = states.old_h + (row + k) * states.old_h_stride;
      const real* x = states.input + (row + k) * states.input_stride;
      if (first < boundary) {
        std::memcpy(to, h + first, (boundary - first) * sizeof(real));
      }
      if (boundary < last) {
        std::memcpy(to + (boundary - first),
                    x + (boundary - states.state_size),
                    (last - boundary) * sizeof(real));
      }
      for (int64_t past = last - first; past < width; ++past) {
        to[past] = 0;
      }
    }
  }
}

// Rows of d_weights in a task: what a task reads of a row of d_gates should be whole cache lines.
constexpr int64_t kGatesPerTask = 8 * kRows;

template <typename real>
int64_t weight_gradient_tasks(const StateParams<real>& states) {
  const int64_t groups = states.batch == 1 ? 1 : ceil_div(weight_panels(states), kPanelsPerGroup);
  return ceil_div(3 * states.state_size, kGatesPerTask) * groups;
}

template <typename real>
void outer_product(const WeightGradientParams<real>& params, int64_t begin, int64_t end) {
  using V = Simd<real>;
  const StateParams<real>& states = params.states;
  const int64_t last_gate = smaller(end * kGatesPerTask, 3 * states.state_size);
  real* out =
      params.d_weights + begin * kGatesPerTask * (states.state_size + states.input_features);
  for (int64_t gate = begin * kGatesPerTask; gate < last_gate; ++gate) {
    const V scalar(params.d_gates[gate]);
    const auto write = [&](const real* from, int64_t columns) __attribute__((always_inline)) {
      int64_t column = 0;
      for (; column + V::kLanes <= columns; column += V::kLanes) {
        (scalar * V::load(from + column)).store(out + column);
      }
      for (; column < columns; ++column) {
        out[column] = params.d_gates[gate] * from[column];
      }
      out += columns;
    };
    write(states.old_h, states.state_size);
    write(states.input, states.input_features);
  }
}

template <typename real>
void weight_gradient(const WeightGradientParams<real>& params,
                     int64_t row,
                     int64_t begin,
                     int64_t end) {
  constexpr int64_t width = kWeightPanelWidth<real>;
  const StateParams<real>& states = params.states;
  const int64_t gates = 3 * states.state_size;
  const int64_t columns = states.state_size + states.input_features;
  const int64_t depth = smaller(kWeightDepth, states.batch - row);
  const int64_t panel_size = width * smaller(states.batch, kWeightDepth);
  const int64_t tasks_per_group = ceil_div(gates, kGatesPerTask);
  if (states.batch == 1) {
    outer_product(params, begin, end);
    return;
  }
  alignas(64) real d_gates[kGatesPerTask / kRows][kWeightDepth * kRows];
  for (int64_t task = begin; task < end; ++task) {
    const int64_t first_gate = task % tasks_per_group * kGatesPerTask;
    const int64_t gate_count = smaller(kGatesPerTask, gates - first_gate);
    const int64_t tiles = ceil_div(gate_count, kRows);
    for (int64_t k = 0; k < depth; ++k) {
      const real* from = params.d_gates + (row + k) * gates + first_gate;
      for (int64_t tile = 0; tile < tiles; ++tile) {
        for (int64_t r = 0; r < kRows; ++r) {
          const int64_t gate = tile * kRows + r;
          d_gates[tile][k * kRows + r] = gate < gate_count ? from[gate] : real(0);
        }
      }
    }
    const int64_t first_panel = task / tasks_per_group * kPanelsPerGroup;
    const int64_t last_panel = smaller(first_panel + kPanelsPerGroup, weight_panels(states));
    // Tile by tile, so that rows of d_weights are written in long stretches.
    for (int64_t tile = 0; tile < tiles; ++tile) {
      for (int64_t panel = first_panel; panel < last_panel; ++panel) {
        const int64_t column = panel * width;
        const auto multiply_from =
            [&](int64_t k, typename Simd<real>::Vector(&sums)[kRows][kMaxVectors])
                __attribute__((always_inline)) {
                  const real* a[kRows];
                  for (int r = 0; r < kRows; ++r) {
                    a[r] = d_gates[tile] + k * kRows + r;
                  }
                  multiply<kRows, kMaxVectors, kRows>(
                      smaller(kDepth, depth - k),
                      a,
                      params.panels + panel * panel_size + k * width,
                      width,
                      sums);
                };
        typename Simd<real>::Vector sums[kRows][kMaxVectors] = {};
        multiply_from(0, sums);
        if (depth > kDepth) {  // kWeightDepth is twice that
          typename Simd<real>::Vector more[kRows][kMaxVectors] = {};
          multiply_from(kDepth, more);
          for (int r = 0; r < kRows; ++r) {
            for (int v = 0; v < kMaxVectors; ++v) {
              sums[r][v] += more[r][v];
            }
          }
        }
        store_tile<kRows, real>(sums,
                                params.d_weights + (first_gate + tile * kRows) * columns + column,
                                columns,
                                smaller(kRows, gate_count - tile * kRows),
                                columns - column,
                                row > 0);
      }
    }
  }
}

// ---- d_bias -------------------------------------------------------------------------------------

template <typename real>
void bias_gradient(const BiasGradientParams<real>& params, int64_t begin, int64_t end) {
  using V = Simd<real>;
  constexpr int kVectors = 4;
  constexpr int64_t kRowsPerSum = 16;
  for (int64_t column = begin; column < end; column += kVectors * V::kLanes) {
    V sums[kVectors];
    int64_t counts[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      sums[v] = V(0);
      counts[v] = clamp(end - column - v * V::kLanes, 0, V::kLanes);
    }
    for (int64_t block = 0; block < params.batch; block += kRowsPerSum) {
      V partial[kVectors] = {V(0), V(0), V(0), V(0)};
      for (int64_t row = block; row < smaller(block + kRowsPerSum, params.batch); ++row) {
        const real* from = params.d_gates + row * params.gates + column;
        for (int v = 0; v < kVectors; ++v) {
          partial[v] = partial[v] + V::load(from + v * V::kLanes, counts[v]);
        }
      }
      for (int v = 0; v < kVectors; ++v) {
        sums[v] = sums[v] + partial[v];
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      sums[v].store(params.d_bias + column + v * V::kLanes, counts[v]);
    }
  }
}

// ---- the table ----------------------------------------------------------------------------------

template <typename scalar_t>
constexpr PointwiseKernels<scalar_t> make_pointwise_kernels() {
  return {forward_rows<scalar_t>, backward_rows<scalar_t>};
}

template <typename real>
constexpr ProductKernels<real> make_product_kernels() {
  return {
      .lanes = Simd<real>::kLanes,
      .max_panel_vectors = kMaxVectors,
      .cell_needs_panels = cell_needs_panels<real>,
      .pack_tasks = pack_tasks<real>,
      .pack_states = pack_states<real>,
      .cell_tasks = cell_tasks<real>,
      .cell = cell<real>,
      .state_gradient_tasks = state_gradient_tasks<real>,
      .state_gradient = state_gradient<real>,
      .weight_depth = kWeightDepth,
      .weight_panels_size = weight_panels_size<real>,
      .weight_panels = weight_panels<real>,
      .pack_weight_panels = pack_weight_panels<real>,
      .weight_gradient_tasks = weight_gradient_tasks<real>,
      .weight_gradient = weight_gradient<real>,
      .bias_gradient = bias_gradient<real>,
  };
}

constexpr Kernels make_kernels() {
  return {
      {make_pointwise_kernels<double>(),
       make_pointwise_kernels<float>(),
       make_pointwise_kernels<c10::Half>(),
       make_pointwise_kernels<c10::BFloat16>()},
      {make_product_kernels<double>(), make_product_kernels<float>()},
  };
}

}  // namespace
}  // namespace lltm::cpu
