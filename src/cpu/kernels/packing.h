// Packs the operands of a register tile: rows of scalars, and panels of vectors.
#pragma once

#include "tile.h"

namespace lltm::cpu {
namespace {

/// Rows of `terms` terms as the scalars of a tile, in place or copied to `scratch`.
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

/// Transposes a square of vectors in registers by exchanging blocks of increasing size.
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

/// The kTerms rows from `first` on, row_of(r) each; null from row `count` on.
template <typename scalar_t, typename RowOf>
LLTM_INLINE void next_rows(const RowOf& row_of,
                           int64_t first,
                           int64_t count,
                           const scalar_t* (&rows)[Operand<scalar_t>::kTerms]) {
  for (int64_t r = 0; r < Operand<scalar_t>::kTerms; ++r) {
    rows[r] = first + r < count ? row_of(first + r) : nullptr;
  }
}

/// Packs the operands of `columns` sums side by side, whose terms are in these rows.
template <typename scalar_t>
LLTM_INLINE void pack_across(const scalar_t* (&rows)[Operand<scalar_t>::kTerms],
                             int64_t columns,
                             accumulate_t<scalar_t>* to) {
  using O = Operand<scalar_t>;
  using V = Simd<typename O::real>;
  const auto pack = [&](int64_t column, int64_t count) __attribute__((always_inline)) {
    O::across(rows, column, count).store(to + column, count);
  };
  int64_t column = 0;
  for (; column + V::kLanes <= columns; column += V::kLanes) {
    pack(column, V::kLanes);
  }
  if (column < columns) {
    pack(column, columns - column);
  }
}

/// Zeroes the columns of a panel beyond the last.
template <typename real>
LLTM_INLINE void clear_columns(real* panel_row, int64_t first, int64_t last) {
  for (int64_t column = first; column < last; ++column) {
    panel_row[column] = 0;
  }
}

/// Packs `columns` columns of a panel's width or less, with a term in each row, as
/// [operand][column]; columns beyond the last are zero.
template <typename scalar_t>
LLTM_INLINE void pack_panel(const scalar_t* from,
                            int64_t stride,
                            int64_t terms,
                            int64_t columns,
                            accumulate_t<scalar_t>* to) {
  using O = Operand<scalar_t>;
  constexpr int64_t width = kPanelWidth<scalar_t>;
  for (int64_t term = 0; term < terms; term += O::kTerms, to += width) {
    const scalar_t* rows[O::kTerms];
    next_rows([&](int64_t r) { return from + r * stride; }, term, terms, rows);
    pack_across(rows, columns, to);
    clear_columns(to, columns, width);
  }
}

template <typename scalar_t>
int64_t column_panels(int64_t columns) {
  return ceil_div(columns, kPanelWidth<scalar_t>);
}

template <typename scalar_t>
int64_t column_panel_size(int64_t gates) {
  return kPanelWidth<scalar_t> * depth_of<scalar_t>(gates);
}

/// Panel p holds the columns of weights from p*width on, as [operand][column]; columns beyond the
/// last are zero.
template <typename scalar_t>
void pack_columns(const PackColumnsParams<scalar_t>& params, int64_t begin, int64_t end) {
  constexpr int64_t width = kPanelWidth<scalar_t>;
  for (int64_t panel = begin; panel < end; ++panel) {
    const int64_t column = panel * width;
    const int64_t count = smaller(width, params.columns - column);
    auto* to = params.panels + panel * column_panel_size<scalar_t>(params.gates);
    pack_panel(params.weights + column, params.weights_stride, params.gates, count, to);
  }
}

/// Transposes at most as many rows as a vector has lanes: writes operand k of row r to
/// to[k * to_stride + r]. Lanes beyond the rows are zero.
template <typename scalar_t>
LLTM_INLINE void transpose_rows(const scalar_t* from,
                                int64_t stride,
                                int64_t rows,
                                int64_t terms,
                                accumulate_t<scalar_t>* to,
                                int64_t to_stride) {
  using O = Operand<scalar_t>;
  using real = typename O::real;
  using V = Simd<real>;
  constexpr int64_t step = V::kLanes * O::kTerms;
  for (int64_t term = 0; term < terms; term += step, to += V::kLanes * to_stride) {
    const int64_t terms_here = smaller(step, terms - term);
    typename V::Vector square[V::kLanes];
    for (int i = 0; i < V::kLanes; ++i) {
      square[i] =
          i < rows ? O::along(from + i * stride + term, terms_here).value : typename V::Vector{};
    }
    transpose<real>(square);
    const int64_t operands = depth_of<scalar_t>(terms_here);
    for (int i = 0; i < V::kLanes; ++i) {
      if (i < operands) {
        V(square[i]).store(to + i * to_stride);
      }
    }
  }
}

template <typename scalar_t>
int64_t depth_of_h_and_input(const HAndInput<scalar_t>& h_and_input) {
  return depth_of<scalar_t>(h_and_input.state_size) +
         depth_of<scalar_t>(h_and_input.input_features);
}

template <typename scalar_t>
int64_t pack_tasks(const HAndInput<scalar_t>& h_and_input) {
  return ceil_div(depth_of_h_and_input(h_and_input), Simd<accumulate_t<scalar_t>>::kLanes);
}

template <typename scalar_t>
int64_t h_and_input_panels_size(const HAndInput<scalar_t>& h_and_input) {
  constexpr int64_t lanes = Simd<accumulate_t<scalar_t>>::kLanes;
  return ceil_div(h_and_input.batch, lanes) * lanes * depth_of_h_and_input(h_and_input);
}

/// Panel p holds the batch rows from p*width on as [operand][row in panel]; rows beyond the batch
/// are zero. The last panel has only as many vectors as it needs.
template <typename scalar_t>
void pack_h_and_input(const HAndInput<scalar_t>& h_and_input,
                      int panel_vectors,
                      accumulate_t<scalar_t>* panels,
                      int64_t begin,
                      int64_t end) {
  using O = Operand<scalar_t>;
  using real = typename O::real;
  using V = Simd<real>;
  const int64_t depth = depth_of_h_and_input(h_and_input);
  const int64_t depth_of_h = depth_of<scalar_t>(h_and_input.state_size);
  const int64_t full_width = panel_vectors * V::kLanes;
  // Packs the operands [first, first + count) of rows of `terms` terms, beginning with the panels'
  // operand k.
  const auto pack_segment = [&](const scalar_t* from,
                                int64_t stride,
                                int64_t terms,
                                int64_t first,
                                int64_t count,
                                int64_t k) {
    const int64_t first_term = first * O::kTerms;
    const int64_t terms_here = smaller(count * O::kTerms, terms - first_term);
    for (int64_t panel_row = 0; panel_row < h_and_input.batch; panel_row += full_width) {
      const int64_t rows_left = smaller(full_width, h_and_input.batch - panel_row);
      const int64_t width = ceil_div(rows_left, V::kLanes) * V::kLanes;
      for (int64_t lane_row = 0; lane_row < width; lane_row += V::kLanes) {
        const int64_t row = panel_row + lane_row;
        transpose_rows(from + row * stride + first_term,
                       stride,
                       smaller(V::kLanes, h_and_input.batch - row),
                       terms_here,
                       panels + panel_row * depth + k * width + lane_row,
                       width);
      }
    }
  };
  for (int64_t task = begin; task < end; ++task) {
    // A task's operands may span the end of old_h and the beginning of input.
    const int64_t first = task * V::kLanes;
    const int64_t last = smaller(first + V::kLanes, depth);
    const int64_t boundary = clamp(depth_of_h, first, last);
    if (first < boundary) {
      pack_segment(h_and_input.old_h,
                   h_and_input.old_h_stride,
                   h_and_input.state_size,
                   first,
                   boundary - first,
                   first);
    }
    if (boundary < last) {
      pack_segment(h_and_input.input,
                   h_and_input.input_stride,
                   h_and_input.input_features,
                   boundary - depth_of_h,
                   last - boundary,
                   boundary);
    }
  }
}

}  // namespace
}  // namespace lltm::cpu
