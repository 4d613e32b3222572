// The cell for a few batch rows: dot products with the rows of weights, without panels.
#pragma once

#include "cell_epilogue.h"
#include "tile.h"

namespace lltm::cpu {
namespace {

/// Up to this batch, processing rows one by one, with vectors along the columns of weights, is
/// faster than a panel with empty lanes. Microseconds with AVX-512, by rows and by a panel:
/// (5,512,512) in bfloat16 114 and 273; (8,512,512) 164 and 280, in float32 308 and 700;
/// (12,512,512) 240 and 281, in float32 445 and 708; but (12,32,128) 25 and 20, 31 and 28.
template <typename scalar_t>
constexpr int64_t kLargestRowwiseBatch = ceil_div(Simd<accumulate_t<scalar_t>>::kLanes * 3, 4);

/// sums[b][r] += dot(x[b], w[r]). `next` is the distance from the rows w to those that are
/// multiplied after them.
template <int batch, int rows, typename scalar_t>
LLTM_INLINE void dot(int64_t terms,
                     const scalar_t* const (&x)[batch],
                     const scalar_t* const (&w)[rows],
                     int64_t next,
                     VectorOf<scalar_t> (&sums)[batch][rows]) {
  using O = Operand<scalar_t>;
  constexpr int64_t step = Simd<typename O::real>::kLanes * O::kTerms;
  const auto add = [&](int64_t term, int64_t count) __attribute__((always_inline)) {
    typename O::Vector x_values[batch];
    for (int b = 0; b < batch; ++b) {
      x_values[b] = O::along(x[b] + term, count).value;
    }
    for (int r = 0; r < rows; ++r) {
      // Rows are too far apart for the hardware prefetcher. If they are in the cache already, the
      // prefetch costs nothing with four rows of the batch, but a quarter of the time with two.
      if (batch >= 4) {
        __builtin_prefetch(w[r] + term + next, 0, 2);
      }
      const typename O::Vector w_values = O::along(w[r] + term, count).value;
      for (int b = 0; b < batch; ++b) {
        sums[b][r] = O::multiply_add(sums[b][r], x_values[b], w_values);
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

/// Sums each of `rows` vectors, a power of two, over its lanes. The sums are in the first lanes of
/// the result.
template <typename real, int rows, int half = Simd<real>::kLanes / 2>
LLTM_INLINE Simd<real> sums_of_lanes(typename Simd<real>::Vector (&x)[rows]) {
  using V = Simd<real>;
  if constexpr (half > 0) {
    // Half of the lanes add the values of the other half. While there are several vectors, the
    // other half does the same for a second vector.
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
    // The sum of vector r is in the lanes from r*kLanes/rows on.
    typename V::IntegerVector first;
    for (int lane = 0; lane < V::kLanes; ++lane) {
      first[lane] = lane % rows * (V::kLanes / rows);
    }
    return V(__builtin_shuffle(x[0], first));
  }
}

// The number of rows of weights and of the batch that are multiplied at once. Their sums, and a
// vector of each row of the batch, stay in registers.
template <typename real>
constexpr int kRowwiseWeights = smaller(4, Simd<real>::kLanes);
constexpr int kRowwiseBatch = LLTM_SIMD_BYTES == 64 ? 4 : 2;

/// Rows of a block of weights that are multiplied at once.
template <typename scalar_t>
struct RowsOfWeights {
  static constexpr int kRows = kRowwiseWeights<accumulate_t<scalar_t>>;

  const scalar_t* rows[kRows];
  int64_t next;  // from them to those that are multiplied after them

  /// The rows from `first` on. Past the last one, the last is taken again.
  LLTM_INLINE RowsOfWeights(const WeightBlock<scalar_t>& weights, int64_t first, int64_t last)
      : next(kRows * weights.stride) {
    for (int r = 0; r < kRows; ++r) {
      rows[r] = weights.data + smaller(first + r, last) * weights.stride;
    }
  }
};

/// Computes a number that is saved, without the bias, of `batch` rows, beginning with `row`, from
/// this many terms of h and of the input.
template <int batch, typename scalar_t, typename Row>
LLTM_INLINE void dot_rows(const HAndInput<scalar_t>& h_and_input,
                          const RowsOfWeights<scalar_t>& weight_hh,
                          const RowsOfWeights<scalar_t>& weight_ih,
                          int64_t h_terms,
                          int64_t input_terms,
                          int64_t row,
                          Row* z,
                          int gate,
                          int64_t first) {
  using real = accumulate_t<scalar_t>;
  constexpr int rows = kRowwiseWeights<real>;
  const scalar_t* h[batch];
  const scalar_t* x[batch];
  for (int b = 0; b < batch; ++b) {
    h[b] = h_and_input.old_h + (row + b) * h_and_input.old_h_stride;
    x[b] = h_and_input.input + (row + b) * h_and_input.input_stride;
  }
  VectorOf<scalar_t> sums[batch][rows] = {};
  dot<batch, rows>(h_terms, h, weight_hh.rows, weight_hh.next, sums);
  dot<batch, rows>(input_terms, x, weight_ih.rows, weight_ih.next, sums);
  for (int b = 0; b < batch; ++b) {
    sums_of_lanes<real>(sums[b]).store(&z[row + b][gate][first], rows);
  }
}

/// One task without panels: all numbers of `count` state indices, beginning with `index`.
template <typename Cell, typename scalar_t>
void cell_rowwise(const CellParams<scalar_t>& params, int64_t index, int64_t count) {
  using real = accumulate_t<scalar_t>;
  constexpr int rows = kRowwiseWeights<real>;
  const HAndInput<scalar_t>& h_and_input = params.h_and_input;
  alignas(64) CellRow<Cell, real> z[kLargestRowwiseBatch<scalar_t>];
  if (count < Simd<real>::kLanes) {  // The epilogue also computes the lanes beyond the state.
    std::memset(z, 0, sizeof(z));
  }
  for (int k = 0; k < Cell::kSaved; ++k) {
    const int gate = place_in(Cell::kOfGate, k), input = place_in(Cell::kOfInput, k);
    const int64_t h_terms = gate < 0 ? 0 : h_and_input.state_size;
    const int64_t input_terms = input < 0 ? 0 : h_and_input.input_features;
    const auto first_row = [&](int place) {
      return (place < 0 ? 0 : place) * h_and_input.state_size + index;
    };
    const int64_t first_of_hh = first_row(gate), first_of_ih = first_row(input);
    for (int64_t i = 0; i < count; i += rows) {
      // Past the last state index, the last one is recomputed and not stored.
      const RowsOfWeights<scalar_t> weight_hh(
          params.weight_hh, first_of_hh + i, first_of_hh + count - 1);
      const RowsOfWeights<scalar_t> weight_ih(
          params.weight_ih, first_of_ih + i, first_of_ih + count - 1);
      for (int64_t row = 0; row < h_and_input.batch; row += kRowwiseBatch) {
        with_constant<kRowwiseBatch>(
            h_and_input.batch - row, [&]<int batch>() __attribute__((always_inline)) {
              dot_rows<batch>(
                  h_and_input, weight_hh, weight_ih, h_terms, input_terms, row, z, k, i);
            });
      }
    }
  }
  finish_cells<Cell>(params, z, 0, h_and_input.batch, index, count);
}

}  // namespace
}  // namespace lltm::cpu
