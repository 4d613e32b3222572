// The register tile, the building block of every product: a few scalars of one matrix, each
// broadcast, times a few vectors of the other.
//
//   product                                 broadcast   vectors along
//   gates = [h | input] @ weights.T         weights     the batch ([h | input] is transposed)
//   d_h, d_input = d_gates @ weights        d_gates     columns of weights
//   d_weights = d_gates.T @ [h | input]     d_gates     columns of [h | input]
//
// The cell reads the weights, the largest matrix, in place. 16-bit operands are widened to float
// when they are packed into panels and rows of scalars, or packed in pairs if the machine has dot
// products of bfloat16: see Operand. Sums are accumulated in the accumulation type.
#pragma once

#include "kernels.h"
#include "operand.h"

namespace lltm::cpu {
namespace {

// The accumulators, a row of vectors and the broadcast scalar share 32 vector registers with
// AVX-512, and 16 without.
constexpr int kAccumulators = LLTM_SIMD_BYTES == 64 ? 24 : 12;
constexpr int kMaxVectors = LLTM_SIMD_BYTES == 64 ? 4 : 2;
constexpr int kRows = kAccumulators / kMaxVectors;
// Longer sums are split into partial sums of this many products, because the rounding error of a
// sum grows with its length. A panel of this depth stays in the L1 cache.
constexpr int64_t kDepth = 128;
// The number of rows, in operands, that a sum of d_weights takes at a time.
constexpr int64_t kWeightDepth = 2 * kDepth;

/// The depth, in operands, of a sum of this many terms.
template <typename scalar_t>
constexpr int64_t depth_of(int64_t terms) {
  return ceil_div(terms, Operand<scalar_t>::kTerms);
}
template <typename scalar_t>
constexpr int64_t kTermsPerBlock = kDepth * Operand<scalar_t>::kTerms;

template <typename scalar_t>
using VectorOf = typename Operand<scalar_t>::Vector;

/// sums[r][v] = sum over k < depth of a[r][k * step] * b[k][v], where the rows of b are b_stride
/// apart. Unless `next` is null, prefetches one cache line of each of `depth` rows there into L2.
template <typename scalar_t, int step, int rows, int vectors>
LLTM_INLINE void multiply(int64_t depth,
                          const typename Operand<scalar_t>::Scalar* const (&a)[rows],
                          const accumulate_t<scalar_t>* b,
                          int64_t b_stride,
                          VectorOf<scalar_t> (&sums)[rows][vectors],
                          const accumulate_t<scalar_t>* next = nullptr) {
  using O = Operand<scalar_t>;
  using V = Simd<typename O::real>;
  // A local copy stays in registers; `sums` does not if the caller indexes it at run time.
  typename O::Vector tile[rows][vectors] = {};
  for (int64_t k = 0; k < depth; ++k) {
    if (next) {
      __builtin_prefetch(next + k * b_stride, 0, 2);
    }
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

/// Calls function.operator()<count>() for a count from 1 to `most`; a larger count is
/// taken for `most`.
template <int most, typename Function>
LLTM_INLINE void with_constant(int64_t count, const Function& function) {
  if constexpr (most > 1) {
    if (count < most) {
      with_constant<most - 1>(count, function);
      return;
    }
  }
  function.template operator()<most>();
}

/// The number of columns of a panel: those of a tile.
template <typename scalar_t>
constexpr int64_t kPanelWidth = kMaxVectors * Simd<accumulate_t<scalar_t>>::kLanes;

/// Finishes a block of the first `rows` rows and `columns` columns of a tile. `sums` accumulates
/// the blocks; the last block writes out_row(r).
template <typename scalar_t, int tile_rows, typename OutRow>
LLTM_INLINE void finish_block(VectorOf<scalar_t> (&tile)[tile_rows][kMaxVectors],
                              bool first,
                              bool last,
                              accumulate_t<scalar_t>* sums,
                              int64_t sums_stride,
                              const OutRow& out_row,
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
        A::store(V(tile[r][v]), out_row(r) + v * V::kLanes, V::kLanes);
      }
    }
  } else {
    for (int64_t r = 0; r < rows; ++r) {
      for (int v = 0; v < kMaxVectors; ++v) {
        const int64_t count = clamp(columns - v * V::kLanes, 0, V::kLanes);
        A::store(V(tile[r][v]), out_row(r) + v * V::kLanes, count);
      }
    }
  }
}

}  // namespace
}  // namespace lltm::cpu
