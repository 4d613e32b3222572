// The register tile that every product is made of: a few scalars of one matrix, each broadcast,
// times a few vectors of the other.
//
//   product                         broadcast   vectors along
//   gates = states @ weights.T      weights     the batch (states transposed into panels)
//   d_states = d_gates @ weights    d_gates     columns of weights
//   d_weights = d_gates.T @ states  d_gates     columns of the states
//
// In the cell the weights, the largest matrix, are read where they lie. 16-bit operands are widened
// to float on their way into panels and rows of scalars, or, where the machine has dot products of
// bfloat16, put there in pairs: see Operand. Sums stay in the accumulation type until they are
// whole.
#pragma once

#include "kernels.h"
#include "operand.h"

namespace lltm::cpu {
namespace {

// 16 vector registers below AVX-512, 32 there: accumulators, a row of vectors and the broadcast.
constexpr int kAccumulators = LLTM_SIMD_BYTES == 64 ? 24 : 12;
constexpr int kMaxVectors = LLTM_SIMD_BYTES == 64 ? 4 : 2;
constexpr int kRows = kAccumulators / kMaxVectors;
// A sum over more than this many products is made of partial sums, each of so many: the rounding
// error of a sum grows with its length. A panel of this depth stays in the first-level cache.
constexpr int64_t kDepth = 128;
// Operands of the rows that a sum of d_weights takes at a time.
constexpr int64_t kWeightDepth = 2 * kDepth;

/// How deep a sum of so many terms is in operands.
template <typename scalar_t>
constexpr int64_t depth_of(int64_t terms) {
  return ceil_div(terms, Operand<scalar_t>::kTerms);
}
template <typename scalar_t>
constexpr int64_t kTermsPerBlock = kDepth * Operand<scalar_t>::kTerms;

template <typename scalar_t>
using VectorOf = typename Operand<scalar_t>::Vector;

/// sums[r][v] = sum over k < depth of a[r][k * step] * b[k][v], rows of b being b_stride apart. Of
/// as many rows at `next` it fetches a line each into the second-level cache, unless that is null.
template <typename scalar_t, int step, int rows, int vectors>
LLTM_INLINE void multiply(int64_t depth,
                          const typename Operand<scalar_t>::Scalar* const (&a)[rows],
                          const accumulate_t<scalar_t>* b,
                          int64_t b_stride,
                          VectorOf<scalar_t> (&sums)[rows][vectors],
                          const accumulate_t<scalar_t>* next = nullptr) {
  using O = Operand<scalar_t>;
  using V = Simd<typename O::real>;
  // Apart from `sums`, whose elements the caller may pick at run time: these stay in registers.
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

/// A tile's columns of a panel.
template <typename scalar_t>
constexpr int64_t kPanelWidth = kMaxVectors * Simd<accumulate_t<scalar_t>>::kLanes;

/// The first `rows` rows and `columns` columns of a tile: a block of their sums. What the blocks
/// before have summed is in `sums`; the last block writes out_row(r).
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
