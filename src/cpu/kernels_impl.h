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
// 16-bit operands are widened to float on their way into panels and rows of scalars, or, where the
// machine has dot products of bfloat16, put there in pairs: see Operand. Sums stay in the
// accumulation type until they are whole.
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

/// How deep a sum of so many terms is in operands.
template <typename scalar_t>
constexpr int64_t depth_of(int64_t terms) {
  return ceil_div(terms, Operand<scalar_t>::kTerms);
}
template <typename scalar_t>
constexpr int64_t kTermsPerBlock = kDepth * Operand<scalar_t>::kTerms;

template <typename scalar_t>
using VectorOf = typename Operand<scalar_t>::Vector;

/// sums[r][v] = sum over k < depth of a[r][k * step] * b[k][v], rows of b being b_stride apart.
template <typename scalar_t, int step, int rows, int vectors>
LLTM_INLINE void multiply(int64_t depth,
                          const typename Operand<scalar_t>::Scalar* const (&a)[rows],
                          const accumulate_t<scalar_t>* b,
                          int64_t b_stride,
                          VectorOf<scalar_t> (&sums)[rows][vectors]) {
  using O = Operand<scalar_t>;
  using V = Simd<typename O::real>;
  // Apart from `sums`, whose elements the caller may pick at run time: these stay in registers.
  typename O::Vector tile[rows][vectors] = {};
  for (int64_t k = 0; k < depth; ++k) {
    typename O::Vector row[vectors];
    for (int v = 0; v < vectors; ++v) {
      row[v] = V::load(b + k * b_stride + v * V::kLanes).value;
    }
    for (int r = 0; r < rows; ++r) {
      const typename O::Vector scalar = O::broadcast(a[r] + k * step);
      for (int v = 0; v < vectors; ++v) {
        tile[r][v] = O::multiply_add(tile[r][v], scalar, row[v]);
      }
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) {
      sums[r][v] = tile[r][v];
    }
  }
}

/// Rows of `terms` terms as the scalars of a tile: where they lie, or in `scratch`.
template <typename scalar_t, int rows>
LLTM_INLINE void scalars_of_rows(const scalar_t* const (&from)[rows],
                                 int64_t terms,
                                 accumulate_t<scalar_t> (&scratch)[rows][kDepth],
                                 const typename Operand<scalar_t>::Scalar* (&scalars)[rows]) {
  using O = Operand<scalar_t>;
  using V = Simd<typename O::real>;
  using Scalar = typename O::Scalar;
  constexpr int64_t step = V::kLanes * O::kTerms;
  for (int r = 0; r < rows; ++r) {
    if (O::in_place(terms)) {
      scalars[r] = reinterpret_cast<const Scalar*>(from[r]);
      continue;
    }
    for (int64_t term = 0; term < terms; term += step) {
      O::along(from[r] + term, smaller(step, terms - term)).store(scratch[r] + term / O::kTerms);
    }
    scalars[r] = reinterpret_cast<const Scalar*>(scratch[r]);
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
/// panel with lanes that are empty. Measured with AVX-512, microseconds by rows and by a panel:
/// (5,512,512) in bfloat16 114 and 273; (8,512,512) 164 and 280, in float32 308 and 700;
/// (12,512,512) 240 and 281, in float32 445 and 708; but (12,32,128) 25 and 20, 31 and 28.
template <typename scalar_t>
constexpr int64_t kLargestRowwiseBatch = ceil_div(Simd<accumulate_t<scalar_t>>::kLanes * 3, 4);

template <typename scalar_t>
bool cell_needs_panels(int64_t batch) {
  return batch > kLargestRowwiseBatch<scalar_t>;
}

/// Of the panels of states: old_h and input begin with an operand of their own.
template <typename scalar_t>
int64_t depth_of_states(const StateParams<scalar_t>& states) {
  return depth_of<scalar_t>(states.state_size) + depth_of<scalar_t>(states.input_features);
}

template <typename scalar_t>
int64_t pack_tasks(const StateParams<scalar_t>& states) {
  return ceil_div(depth_of_states(states), Simd<accumulate_t<scalar_t>>::kLanes);
}

template <typename scalar_t>
int64_t state_panels_size(const StateParams<scalar_t>& states) {
  constexpr int64_t lanes = Simd<accumulate_t<scalar_t>>::kLanes;
  return ceil_div(states.batch, lanes) * lanes * depth_of_states(states);
}

/// Panel p holds the batch rows from p*width on as [operand][row in panel]; rows beyond the batch
/// are zero. The last panel has only as many vectors as it needs.
template <typename scalar_t>
void pack_states(const StateParams<scalar_t>& states,
                 int panel_vectors,
                 accumulate_t<scalar_t>* panels,
                 int64_t begin,
                 int64_t end) {
  using O = Operand<scalar_t>;
  using real = typename O::real;
  using V = Simd<real>;
  const int64_t depth = depth_of_states(states);
  const int64_t depth_of_h = depth_of<scalar_t>(states.state_size);
  const int64_t full_width = panel_vectors * V::kLanes;
  // Operands [first, first + count) of rows of `terms` terms, to the panels' k-th and on.
  const auto pack_segment = [&](const scalar_t* from,
                                int64_t stride,
                                int64_t terms,
                                int64_t first,
                                int64_t count,
                                int64_t k) {
    const int64_t first_term = first * O::kTerms;
    const int64_t terms_here = smaller(count * O::kTerms, terms - first_term);
    for (int64_t panel_row = 0; panel_row < states.batch; panel_row += full_width) {
      const int64_t rows_left = smaller(full_width, states.batch - panel_row);
      const int64_t width = ceil_div(rows_left, V::kLanes) * V::kLanes;
      real* to = panels + panel_row * depth + k * width;
      for (int64_t lane_row = 0; lane_row < width; lane_row += V::kLanes) {
        typename V::Vector square[V::kLanes];
        for (int i = 0; i < V::kLanes; ++i) {
          const int64_t row = panel_row + lane_row + i;
          square[i] = row < states.batch
                          ? O::along(from + row * stride + first_term, terms_here).value
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
    // The operands of a task may end those of old_h and begin those of input.
    const int64_t first = task * V::kLanes;
    const int64_t last = smaller(first + V::kLanes, depth);
    const int64_t boundary = clamp(depth_of_h, first, last);
    if (first < boundary) {
      pack_segment(
          states.old_h, states.old_h_stride, states.state_size, first, boundary - first, first);
    }
    if (boundary < last) {
      pack_segment(states.input,
                   states.input_stride,
                   states.input_features,
                   boundary - depth_of_h,
                   last - boundary,
                   boundary);
    }
  }
}

template <typename scalar_t>
int64_t cell_tasks(const CellParams<scalar_t>& params) {
  constexpr int64_t lanes = Simd<accumulate_t<scalar_t>>::kLanes;
  const int64_t groups = ceil_div(params.states.state_size, lanes);
  return params.panels ? groups * ceil_div(params.states.batch, params.panel_vectors * lanes)
                       : groups;
}

/// The pre-activations of one batch row for the state indices of a task, gate by gate.
template <typename real>
using CellRow = real[3][Simd<real>::kLanes];

/// Adds the bias, writes gates, and the new state.
template <typename scalar_t>
void finish_cells(const CellParams<scalar_t>& params,
                  const CellRow<accumulate_t<scalar_t>>* z,
                  int64_t row,
                  int64_t rows,
                  int64_t index,
                  int64_t count) {
  using A = Access<scalar_t>;
  using V = Simd<typename A::real>;
  const int64_t state_size = params.states.state_size;
  V bias[3];
  for (int gate = 0; gate < 3; ++gate) {
    bias[gate] = params.bias ? A::load(params.bias + gate * state_size + index, count) : V(0);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const cell::Gates<V> gates{
        V::load(z[r][0]) + bias[0], V::load(z[r][1]) + bias[1], V::load(z[r][2]) + bias[2]};
    scalar_t* to = params.gates + (row + r) * 3 * state_size + index;
    A::store(gates.input_gate, to, count);
    A::store(gates.output_gate, to + state_size, count);
    A::store(gates.candidate, to + 2 * state_size, count);
    const int64_t offset = (row + r) * state_size + index;
    const auto state = cell::forward<SimdMath>(gates, A::load(params.old_cell + offset, count));
    A::store(state.h, params.new_h + offset, count);
    A::store(state.cell, params.new_cell + offset, count);
  }
}

/// One task: `count` state indices from `index` on, with their three gates, for one panel.
template <int vectors, typename scalar_t>
void cell_panel(const CellParams<scalar_t>& params,
                const accumulate_t<scalar_t>* panel,
                int64_t row,
                int64_t rows,
                int64_t index,
                int64_t count) {
  using O = Operand<scalar_t>;
  using real = typename O::real;
  using V = Simd<real>;
  // A tile has all three gates of `indices` state indices.
  constexpr int indices = smaller(vectors * 12 <= kAccumulators ? 4 : 2, V::kLanes);
  constexpr int tile_rows = 3 * indices;
  constexpr int width = vectors * V::kLanes;
  const int64_t state_size = params.states.state_size;
  alignas(64) real sums[3][V::kLanes][width];
  alignas(64) real scratch[tile_rows][kDepth];
  const auto add_segment = [&](const scalar_t* weights, const real* operands, int64_t terms) {
    for (int64_t term = 0; term < terms; term += kTermsPerBlock<scalar_t>) {
      const int64_t terms_here = smaller(kTermsPerBlock<scalar_t>, terms - term);
      const bool first = weights == params.weights && term == 0;
      for (int64_t i = 0; i < count; i += indices) {
        const scalar_t* from[tile_rows];
        for (int r = 0; r < tile_rows; ++r) {
          // Past the last state index the last is computed again, and not stored.
          const int64_t at = index + smaller(i + r % indices, count - 1);
          from[r] = weights + (r / indices * state_size + at) * params.weights_stride + term;
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
          for (int v = 0; v < vectors; ++v) {
            real* to = &sums[r / indices][i + r % indices][v * V::kLanes];
            V(first ? V(tile[r][v]) : V::load(to) + V(tile[r][v])).store(to);
          }
        }
      }
    }
  };
  add_segment(params.weights, panel, state_size);
  add_segment(params.weights + state_size,
              panel + depth_of<scalar_t>(state_size) * width,
              params.states.input_features);
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

/// sums[b][r] += the dot products of `batch` rows and `rows` rows. `next` is how far it is from the
/// latter to the rows that follow them.
template <int batch, int rows, typename scalar_t>
LLTM_INLINE void dot(int64_t terms,
                     const scalar_t* const (&x)[batch],
                     const scalar_t* const (&w)[rows],
                     int64_t next,
                     VectorOf<scalar_t> (&sums)[batch][rows]) {
  using O = Operand<scalar_t>;
  constexpr int64_t step = Simd<typename O::real>::kLanes * O::kTerms;
  const auto add = [&](int64_t term, int64_t count) __attribute__((always_inline)) {
    typename O::Vector of_x[batch];
    for (int b = 0; b < batch; ++b) {
      of_x[b] = O::along(x[b] + term, count).value;
    }
    for (int r = 0; r < rows; ++r) {
      // Rows lie too far apart for the machine to see the next ones coming. Where they are in the
      // cache this costs nothing beside four rows of the batch, but a quarter beside two.
      if (batch >= 4) {
        __builtin_prefetch(w[r] + term + next, 0, 2);
      }
      const typename O::Vector of_w = O::along(w[r] + term, count).value;
      for (int b = 0; b < batch; ++b) {
        sums[b][r] = O::multiply_add(sums[b][r], of_x[b], of_w);
      }
    }
  };
  int64_t term = 0;
  for (; term + step <= terms; term += step) {
    add(term, step);
  }
  if (term < terms) {
    add(term, terms - term);
  }
}

/// The sums over the lanes of `rows` vectors, a power of two, in the first lanes of one.
template <typename real, int rows, int half = Simd<real>::kLanes / 2>
LLTM_INLINE Simd<real> sums_of_lanes(typename Simd<real>::Vector (&x)[rows]) {
  using V = Simd<real>;
  if constexpr (half > 0) {
    // Half of the lanes add what the others have; those take a second vector's, while there is one.
    constexpr bool several = half * rows >= V::kLanes;
    constexpr int left = several ? half * rows / V::kLanes : 1;
    typename V::IntegerVector own;
    typename V::IntegerVector other;
    for (int lane = 0; lane < V::kLanes; ++lane) {
      own[lane] = several && lane & half ? V::kLanes + lane : lane;
      other[lane] = own[lane] ^ half;
    }
    for (int i = 0; i < left; ++i) {
      const auto second = x[several ? i + left : i];
      x[i] = __builtin_shuffle(x[i], second, own) + __builtin_shuffle(x[i], second, other);
    }
    return sums_of_lanes<real, rows, half / 2>(x);
  } else {
    // That of vector r is in the lanes from r*kLanes/rows on.
    typename V::IntegerVector first;
    for (int lane = 0; lane < V::kLanes; ++lane) {
      first[lane] = lane % rows * (V::kLanes / rows);
    }
    return V(__builtin_shuffle(x[0], first));
  }
}

// Rows of weights that are multiplied at once, and rows of the batch: their sums, and a vector of
// each row of the batch, stay in registers.
template <typename real>
constexpr int kRowwiseWeights = smaller(4, Simd<real>::kLanes);
constexpr int kRowwiseBatch = LLTM_SIMD_BYTES == 64 ? 4 : 2;

/// The pre-activations, without the bias, of `batch` rows from `row` on, or as many as there are.
template <int batch, typename scalar_t>
LLTM_INLINE void dot_rows(const StateParams<scalar_t>& states,
                          const scalar_t* const (&weights)[kRowwiseWeights<accumulate_t<scalar_t>>],
                          int64_t next,
                          int64_t row,
                          CellRow<accumulate_t<scalar_t>>* z,
                          int gate,
                          int64_t first) {
  if constexpr (batch > 1) {
    if (states.batch - row < batch) {
      dot_rows<batch - 1>(states, weights, next, row, z, gate, first);
      return;
    }
  }
  using real = accumulate_t<scalar_t>;
  constexpr int rows = kRowwiseWeights<real>;
  const scalar_t* h[batch];
  const scalar_t* x[batch];
  for (int b = 0; b < batch; ++b) {
    h[b] = states.old_h + (row + b) * states.old_h_stride;
    x[b] = states.input + (row + b) * states.input_stride;
  }
  const scalar_t* weights_of_input[rows];
  for (int r = 0; r < rows; ++r) {
    weights_of_input[r] = weights[r] + states.state_size;
  }
  VectorOf<scalar_t> sums[batch][rows] = {};
  dot<batch, rows>(states.state_size, h, weights, next, sums);
  dot<batch, rows>(states.input_features, x, weights_of_input, next, sums);
  for (int b = 0; b < batch; ++b) {
    sums_of_lanes<real>(sums[b]).store(&z[row + b][gate][first], rows);
  }
}

/// One task without panels: `count` state indices from `index` on, with their three gates.
template <typename scalar_t>
void cell_rowwise(const CellParams<scalar_t>& params, int64_t index, int64_t count) {
  using real = accumulate_t<scalar_t>;
  constexpr int rows = kRowwiseWeights<real>;
  const StateParams<scalar_t>& states = params.states;
  alignas(64) CellRow<real> z[kLargestRowwiseBatch<scalar_t>];
  for (int gate = 0; gate < 3; ++gate) {
    for (int64_t i = 0; i < count; i += rows) {
      const scalar_t* weights[rows];
      for (int r = 0; r < rows; ++r) {
        // Past the last state index the last is computed again, and not stored.
        const int64_t at = gate * states.state_size + index + smaller(i + r, count - 1);
        weights[r] = params.weights + at * params.weights_stride;
      }
      for (int64_t row = 0; row < states.batch; row += kRowwiseBatch) {
        dot_rows<kRowwiseBatch>(states, weights, rows * params.weights_stride, row, z, gate, i);
      }
    }
  }
  finish_cells(params, z, 0, states.batch, index, count);
}

template <typename scalar_t>
void cell(const CellParams<scalar_t>& params, int64_t begin, int64_t end) {
  using real = accumulate_t<scalar_t>;
  using V = Simd<real>;
  const StateParams<scalar_t>& states = params.states;
  const int64_t width = params.panels ? params.panel_vectors * V::kLanes : states.batch;
  const int64_t panels = ceil_div(states.batch, width);
  for (int64_t task = begin; task < end; ++task) {
    // Neighbouring tasks share the rows of weights.
    const int64_t index = task / panels * V::kLanes;
    const int64_t count = smaller(V::kLanes, states.state_size - index);
    if (!params.panels) {
      cell_rowwise(params, index, count);
      continue;
    }
    const int64_t row = task % panels * width;
    const int64_t rows = smaller(width, states.batch - row);
    const real* panel = params.panels + row * depth_of_states(states);
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

// ---- products that sum over many rows -----------------------------------------------------------

/// A tile's columns of a panel.
template <typename scalar_t>
constexpr int64_t kPanelWidth = kMaxVectors * Simd<accumulate_t<scalar_t>>::kLanes;

/// Operands of `columns` sums side by side: the first terms of each, of `terms` that are left.
template <typename scalar_t>
LLTM_INLINE void pack_across(const scalar_t* from,
                             int64_t stride,
                             int64_t terms,
                             int64_t columns,
                             accumulate_t<scalar_t>* to) {
  using O = Operand<scalar_t>;
  using V = Simd<typename O::real>;
  const auto pack = [&](int64_t column, int64_t count) __attribute__((always_inline)) {
    O::across(from + column, stride, smaller(terms, O::kTerms), count).store(to + column, count);
  };
  int64_t column = 0;
  for (; column + V::kLanes <= columns; column += V::kLanes) {
    pack(column, V::kLanes);
  }
  if (column < columns) {
    pack(column, columns - column);
  }
}

/// The first `rows` rows and `columns` columns of a tile: a block of their sums. What the blocks
/// before have summed is in `sums`; the last block writes `out`.
template <typename scalar_t, int tile_rows>
LLTM_INLINE void finish_block(VectorOf<scalar_t> (&tile)[tile_rows][kMaxVectors],
                              bool first,
                              bool last,
                              accumulate_t<scalar_t>* sums,
                              int64_t sums_stride,
                              scalar_t* out,
                              int64_t stride,
                              int64_t rows,
                              int64_t columns) {
  using A = Access<scalar_t>;
  using V = Simd<typename A::real>;
  if (!first) {
    for (int r = 0; r < tile_rows; ++r) {
      for (int v = 0; v < kMaxVectors; ++v) {
        tile[r][v] += V::load(sums + r * sums_stride + v * V::kLanes).value;
      }
    }
  }
  if (!last) {
    for (int r = 0; r < tile_rows; ++r) {
      for (int v = 0; v < kMaxVectors; ++v) {
        V(tile[r][v]).store(sums + r * sums_stride + v * V::kLanes);
      }
    }
  } else if (rows >= tile_rows && columns >= kPanelWidth<scalar_t>) {
    for (int r = 0; r < tile_rows; ++r) {
      for (int v = 0; v < kMaxVectors; ++v) {
        A::store(V(tile[r][v]), out + r * stride + v * V::kLanes, V::kLanes);
      }
    }
  } else {
    for (int64_t r = 0; r < rows; ++r) {
      for (int v = 0; v < kMaxVectors; ++v) {
        const int64_t count = clamp(columns - v * V::kLanes, 0, V::kLanes);
        A::store(V(tile[r][v]), out + r * stride + v * V::kLanes, count);
      }
    }
  }
}

// ---- d_states = d_gates @ weights ---------------------------------------------------------------

// A single row of d_gates uses every weight once: it is read row after row of weights, in stretches
// that are long enough to be prefetched.
constexpr int64_t kColumnsOfSingleRow = 256;

template <typename scalar_t>
int64_t state_gradient_tasks(const StateGradientParams<scalar_t>& params) {
  if (params.batch == 1) {
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
void state_gradient_of_single_row(const StateGradientParams<scalar_t>& params,
                                  int64_t begin,
                                  int64_t end) {
  using A = Access<scalar_t>;
  using real = typename A::real;
  using V = Simd<real>;
  constexpr int kGates = 8;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t column = task * kColumnsOfSingleRow;
    const int64_t columns = smaller(kColumnsOfSingleRow, params.columns - column);
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
    for (int64_t i = 0; i < columns; i += V::kLanes) {
      A::store(V::load(total + i), params.out + column + i, smaller(V::kLanes, columns - i));
    }
  }
}

// The sums of so many rows of a panel stay in the first-level cache.
constexpr int64_t kMaxRowsPerChunk = 128;

template <typename scalar_t>
void state_gradient(const StateGradientParams<scalar_t>& params, int64_t begin, int64_t end) {
  using O = Operand<scalar_t>;
  using real = typename O::real;
  constexpr int64_t width = kPanelWidth<scalar_t>;
  if (params.batch == 1) {
    state_gradient_of_single_row(params, begin, end);
    return;
  }
  alignas(64) real panel[kDepth * width];
  alignas(64) real sums[kMaxRowsPerChunk][width];
  for (int64_t task = begin; task < end; ++task) {
    const int64_t column = task / params.row_chunks * width;
    const int64_t count = smaller(width, params.columns - column);
    const int64_t chunk = task % params.row_chunks;
    const int64_t first_row = params.batch * chunk / params.row_chunks;
    const int64_t last_row = params.batch * (chunk + 1) / params.row_chunks;
    for (int64_t gate = 0; gate < params.gates; gate += kTermsPerBlock<scalar_t>) {
      const int64_t terms = smaller(kTermsPerBlock<scalar_t>, params.gates - gate);
      const scalar_t* from = params.weights + gate * params.weights_stride + column;
      const real* vectors = panel;
      int64_t stride = width;
      // A copy pays from the second tile of rows on: rows of weights lie far apart, and collide in
      // the cache.
      if (std::is_same_v<real, scalar_t> && last_row - first_row <= kRows && count == width) {
        vectors = reinterpret_cast<const real*>(from);
        stride = params.weights_stride;
      } else {
        for (int64_t term = 0; term < terms; term += O::kTerms) {
          pack_across(from + term * params.weights_stride,
                      params.weights_stride,
                      terms - term,
                      count,
                      panel + term / O::kTerms * width);
        }
      }
      // Rows of weights lie too far apart for the machine to see the next ones coming.
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
      const auto multiply_rows = [&]<int rows>(int64_t row) __attribute__((always_inline)) {
        const scalar_t* d_gates[rows];
        for (int r = 0; r < rows; ++r) {
          d_gates[r] = params.d_gates + (row + r) * params.gates + gate;
        }
        alignas(64) real scratch[rows][kDepth];
        const typename O::Scalar* a[rows];
        scalars_of_rows<scalar_t>(d_gates, terms, scratch, a);
        prefetch(rows);
        typename O::Vector tile[rows][kMaxVectors];
        multiply<scalar_t, 1>(depth_of<scalar_t>(terms), a, vectors, stride, tile);
        finish_block<scalar_t>(tile,
                               gate == 0,
                               gate + terms == params.gates,
                               sums[row - first_row],
                               width,
                               params.out + row * params.columns + column,
                               params.columns,
                               rows,
                               count);
      };
      int64_t row = first_row;
      for (; row + kRows <= last_row; row += kRows) {
        multiply_rows.template operator()<kRows>(row);
      }
      for (; row + 3 <= last_row; row += 3) {
        multiply_rows.template operator()<3>(row);
      }
      for (; row < last_row; ++row) {
        multiply_rows.template operator()<1>(row);
      }
    }
  }
}

// ---- d_weights = d_gates.T @ states -------------------------------------------------------------

// Operands of the batch in a block; the panels of a group, so deep, stay in the second-level cache.
constexpr int64_t kWeightDepth = 2 * kDepth;
constexpr int64_t kMaxPanelsPerGroup = 8;

/// None for a single row, whose outer product is written without.
template <typename scalar_t>
int64_t weight_panels(const StateParams<scalar_t>& states) {
  return states.batch == 1
             ? 0
             : ceil_div(states.state_size + states.input_features, kPanelWidth<scalar_t>);
}

template <typename scalar_t>
int64_t weight_panel_size(const StateParams<scalar_t>& states) {
  return kPanelWidth<scalar_t> * depth_of<scalar_t>(states.batch);
}

/// Where the panels of a group begin.
template <typename scalar_t>
int64_t first_panel_of(const WeightGradientParams<scalar_t>& params, int64_t group) {
  return weight_panels(params.states) * group / params.panel_groups;
}

/// Panel p holds the columns from p*width on, as [operand][column in panel].
template <typename scalar_t>
void pack_weight_panels(const WeightGradientParams<scalar_t>& params, int64_t begin, int64_t end) {
  using O = Operand<scalar_t>;
  constexpr int64_t width = kPanelWidth<scalar_t>;
  const StateParams<scalar_t>& states = params.states;
  const int64_t columns = states.state_size + states.input_features;
  for (int64_t panel = begin; panel < end; ++panel) {
    const int64_t first = panel * width;
    const int64_t last = smaller(first + width, columns);
    const int64_t boundary = clamp(states.state_size, first, last);
    auto* to = params.panels + (panel - params.first_panel) * weight_panel_size(states);
    for (int64_t row = 0; row < states.batch; row += O::kTerms, to += width) {
      const int64_t terms = states.batch - row;
      pack_across(states.old_h + row * states.old_h_stride + first,
                  states.old_h_stride,
                  terms,
                  boundary - first,
                  to);
      pack_across(states.input + row * states.input_stride + (boundary - states.state_size),
                  states.input_stride,
                  terms,
                  last - boundary,
                  to + (boundary - first));
      for (int64_t past = last - first; past < width; ++past) {
        to[past] = 0;
      }
    }
  }
}

// Rows of d_weights in a task: what a task reads of a row of d_gates should be whole cache lines.
constexpr int64_t kGatesPerTask = 8 * kRows;

template <typename scalar_t>
int64_t weight_gradient_tasks(const WeightGradientParams<scalar_t>& params) {
  return ceil_div(3 * params.states.state_size, kGatesPerTask) * params.panel_groups;
}

template <typename scalar_t>
void outer_product(const WeightGradientParams<scalar_t>& params, int64_t begin, int64_t end) {
  using A = Access<scalar_t>;
  using real = typename A::real;
  using V = Simd<real>;
  const StateParams<scalar_t>& states = params.states;
  const int64_t last_gate = smaller(end * kGatesPerTask, 3 * states.state_size);
  scalar_t* out =
      params.d_weights + begin * kGatesPerTask * (states.state_size + states.input_features);
  for (int64_t gate = begin * kGatesPerTask; gate < last_gate; ++gate) {
    const V scalar(real(params.d_gates[gate]));
    const auto write = [&](const scalar_t* from, int64_t columns) __attribute__((always_inline)) {
      int64_t column = 0;
      for (; column + V::kLanes <= columns; column += V::kLanes) {
        A::store(scalar * A::load(from + column, V::kLanes), out + column, V::kLanes);
      }
      if (column < columns) {
        A::store(scalar * A::load(from + column, columns - column), out + column, columns - column);
      }
      out += columns;
    };
    write(states.old_h, states.state_size);
    write(states.input, states.input_features);
  }
}

template <typename scalar_t>
void weight_gradient(const WeightGradientParams<scalar_t>& params, int64_t begin, int64_t end) {
  using O = Operand<scalar_t>;
  using real = typename O::real;
  constexpr int64_t width = kPanelWidth<scalar_t>;
  const StateParams<scalar_t>& states = params.states;
  const int64_t gates = 3 * states.state_size;
  const int64_t columns = states.state_size + states.input_features;
  const int64_t depth = depth_of<scalar_t>(states.batch);
  const int64_t tasks_per_group = ceil_div(gates, kGatesPerTask);
  if (states.batch == 1) {
    outer_product(params, begin, end);
    return;
  }
  alignas(64) real d_gates[kGatesPerTask / kRows][kWeightDepth * kRows];
  alignas(64) real sums[kGatesPerTask][kMaxPanelsPerGroup * width];
  for (int64_t task = begin; task < end; ++task) {
    const int64_t first_gate = task % tasks_per_group * kGatesPerTask;
    const int64_t gate_count = smaller(kGatesPerTask, gates - first_gate);
    const int64_t tiles = ceil_div(gate_count, kRows);
    const int64_t group = task / tasks_per_group;
    const int64_t first_panel = first_panel_of(params, group);
    const int64_t last_panel = first_panel_of(params, group + 1);
    for (int64_t block = 0; block < depth; block += kWeightDepth) {
      const int64_t depth_here = smaller(kWeightDepth, depth - block);
      for (int64_t k = 0; k < depth_here; ++k) {
        const int64_t row = (block + k) * O::kTerms;
        real operands[kGatesPerTask] = {};
        pack_across(params.d_gates + row * gates + first_gate,
                    gates,
                    states.batch - row,
                    gate_count,
                    operands);
        for (int64_t tile = 0; tile < tiles; ++tile) {
          std::memcpy(d_gates[tile] + k * kRows, operands + tile * kRows, kRows * sizeof(real));
        }
      }
      // Tile by tile, so that rows of d_weights are written in long stretches.
      for (int64_t tile = 0; tile < tiles; ++tile) {
        for (int64_t panel = first_panel; panel < last_panel; ++panel) {
          const int64_t column = panel * width;
          const auto multiply_from =
              [&](int64_t k, VectorOf<scalar_t>(&tile_sums)[kRows][kMaxVectors])
                  __attribute__((always_inline)) {
                    const typename O::Scalar* a[kRows];
                    for (int r = 0; r < kRows; ++r) {
                      a[r] = reinterpret_cast<const typename O::Scalar*>(d_gates[tile] + k * kRows +
                                                                         r);
                    }
                    multiply<scalar_t, kRows>(smaller(kDepth, depth_here - k),
                                              a,
                                              params.panels +
                                                  (panel - params.first_panel) * width * depth +
                                                  (block + k) * width,
                                              width,
                                              tile_sums);
                  };
          typename O::Vector tile_sums[kRows][kMaxVectors];
          multiply_from(0, tile_sums);
          if (depth_here > kDepth) {  // kWeightDepth is twice that
            typename O::Vector more[kRows][kMaxVectors];
            multiply_from(kDepth, more);
            for (int r = 0; r < kRows; ++r) {
              for (int v = 0; v < kMaxVectors; ++v) {
                tile_sums[r][v] += more[r][v];
              }
            }
          }
          finish_block<scalar_t>(tile_sums,
                                 block == 0,
                                 block + depth_here == depth,
                                 &sums[tile * kRows][(panel - first_panel) * width],
                                 kMaxPanelsPerGroup * width,
                                 params.d_weights + (first_gate + tile * kRows) * columns + column,
                                 columns,
                                 smaller(kRows, gate_count - tile * kRows),
                                 columns - column);
        }
      }
    }
  }
}

// ---- d_bias -------------------------------------------------------------------------------------

template <typename scalar_t>
void bias_gradient(const BiasGradientParams<scalar_t>& params, int64_t begin, int64_t end) {
  using A = Access<scalar_t>;
  using V = Simd<typename A::real>;
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
        const scalar_t* from = params.d_gates + row * params.gates + column;
        for (int v = 0; v < kVectors; ++v) {
          partial[v] = partial[v] + A::load(from + v * V::kLanes, counts[v]);
        }
      }
      for (int v = 0; v < kVectors; ++v) {
        sums[v] = sums[v] + partial[v];
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      A::store(sums[v], params.d_bias + column + v * V::kLanes, counts[v]);
    }
  }
}

// ---- the table ----------------------------------------------------------------------------------

template <typename scalar_t>
constexpr PointwiseKernels<scalar_t> make_pointwise_kernels() {
  return {forward_rows<scalar_t>, backward_rows<scalar_t>};
}

template <typename scalar_t>
constexpr ProductKernels<scalar_t> make_product_kernels() {
  return {
      .lanes = Simd<accumulate_t<scalar_t>>::kLanes,
      .max_panel_vectors = kMaxVectors,
      .cell_needs_panels = cell_needs_panels<scalar_t>,
      .pack_tasks = pack_tasks<scalar_t>,
      .state_panels_size = state_panels_size<scalar_t>,
      .pack_states = pack_states<scalar_t>,
      .cell_tasks = cell_tasks<scalar_t>,
      .cell = cell<scalar_t>,
      .max_rows_per_chunk = kMaxRowsPerChunk,
      .state_gradient_tasks = state_gradient_tasks<scalar_t>,
      .state_gradient = state_gradient<scalar_t>,
      .max_panels_per_group = kMaxPanelsPerGroup,
      .weight_panel_size = weight_panel_size<scalar_t>,
      .weight_panels = weight_panels<scalar_t>,
      .first_panel_of = first_panel_of<scalar_t>,
      .pack_weight_panels = pack_weight_panels<scalar_t>,
      .weight_gradient_tasks = weight_gradient_tasks<scalar_t>,
      .weight_gradient = weight_gradient<scalar_t>,
      .bias_gradient = bias_gradient<scalar_t>,
  };
}

template <typename... scalars>
constexpr KernelsFor<scalars...> make_kernels(KernelsFor<scalars...>) {
  return {{make_pointwise_kernels<scalars>()...}, {make_product_kernels<scalars>()...}};
}

}  // namespace
}  // namespace lltm::cpu
