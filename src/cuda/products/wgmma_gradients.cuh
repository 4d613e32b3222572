// The products of the backward by wgmma (sm_90a): tiles of 128 rows, 64 for each of two warpgroups,
// and of 64, 128 or 256 columns. The rows of the left operand are K. In 16 bits wgmma reads it from
// shared memory. In TF32, where wgmma reads shared memory only along K, it passes through
// registers. For the same reason, the rows of the right operand are N in TF32, for which the inputs
// are transposed beforehand. In 16 bits those for d_weights are K.
#pragma once

#include "../problem.h"
#include "../ptx/bulk_copy.cuh"
#include "../ptx/shared.cuh"
#include "../ptx/wgmma.cuh"
#include "../runtime/tensor_maps.h"
#include "../tile/elements.h"
#include "../tile/shapes.h"
#include "operands.cuh"

#include <type_traits>

namespace lltm::cuda {

/// The bytes of a box of 64x64 16-bit elements.
constexpr int kHalfBoxBytes = 64 * 64 * 2;

/// Copies the operands of a unit's chunk: kCopiers threads copy the left operand and as many the
/// right one, a share each. Each of the kRanks ranks with the same columns copies its shares of the
/// right operand to all of them. Tiles of d_weights have kWeightColumns columns.
template <typename Product, int kWeightColumns, int kRanks, int kCopiers>
struct GradientCopies {
  static constexpr int kShares = kCopiers * kRanks;
  // Where the rows of the right operand are K, it is copied in boxes of 64 columns, of which a
  // copier may have none.
  static constexpr int kWideBoxes = (kWeightColumns / 64 + kShares - 1) / kShares;

  /// The rows of a box of the right operand in all other cases.
  static LLTM_HOST_DEVICE int rows_b(int columns) { return columns / kShares; }

  static LLTM_DEVICE void copy_left(
      uint32_t to, const CUtensorMap* map, int row, int k, int copier, uint32_t barrier) {
    constexpr int kBoxes = kGradientRows / Product::kBoxColumns / kCopiers;
    constexpr int kBoxBytes = Product::kBoxColumns * Product::kBoxColumns * Product::kElementSize;
    arrive_expecting(barrier, kBoxes * kBoxBytes);
#pragma unroll
    for (int i = 0; i < kBoxes; ++i) {
      const int box = copier * kBoxes + i;
      copy_box_2d(to + box * kBoxBytes, map, row + box * Product::kBoxColumns, k, barrier);
    }
  }

  /// In each block, what this copier and its counterparts in the other ranks copy is awaited.
  static LLTM_DEVICE void copy_right(uint32_t to,
                                     const CUtensorMap* map,
                                     bool of_weights,
                                     int columns,
                                     int column,
                                     int k,
                                     int rank,
                                     int copier,
                                     uint32_t barrier) {
    const int share = rank * kCopiers + copier;
    if (Product::kWeightRowsOfK && of_weights) {
      const bool has_boxes = copier < kWeightColumns / 64;
      arrive_expecting(barrier, has_boxes ? kWideBoxes * kRanks * kHalfBoxBytes : 0);
#pragma unroll
      for (int i = 0; i < kWideBoxes; ++i) {
        const int box = share + i * kShares;
        if (box < kWeightColumns / 64) {
          copy(to + box * kHalfBoxBytes, map, column + box * 64, k, barrier);
        }
      }
    } else {
      const int first = share * rows_b(columns);
      arrive_expecting(barrier, columns * (128 / kCopiers));
      copy(to + first * 128, map, k, column + first, barrier);
    }
  }

 private:
  static LLTM_DEVICE void copy(
      uint32_t to, const CUtensorMap* map, int x, int y, uint32_t barrier) {
    if constexpr (kRanks == 1) {
      copy_box_2d(to, map, x, y, barrier);
    } else {
      copy_box_2d(to, map, x, y, barrier, static_cast<uint16_t>((1 << kRanks) - 1));
    }
  }
};

/// The descriptor of boxes whose rows are K, as many as the operand's columns take, or, without
/// kRowsOfK, of rows of 64 elements of K.
template <bool kRowsOfK>
LLTM_DEVICE uint64_t describe_boxes(uint32_t address) {
  return kRowsOfK ? describe_rows_of_k(address, kHalfBoxBytes) : describe_matrix(address);
}

/// sum += a * b over 64 elements of K. Both operands are as in describe_boxes().
template <Arithmetic kArithmetic, bool kRowsOfKA, bool kRowsOfKB, int kSums>
LLTM_DEVICE void multiply_boxes(float (&sum)[kSums], uint64_t a, uint64_t b) {
  // 16 elements further along K: 16 rows of 128 bytes, or 32 bytes of a row, in units of 16 bytes.
  constexpr int kStepA = kRowsOfKA ? 128 : 2, kStepB = kRowsOfKB ? 128 : 2;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    multiply_group<kArithmetic, kRowsOfKA, kRowsOfKB>(sum, a + step * kStepA, b + step * kStepB);
  }
}

/// Products in 16 bits.
template <Arithmetic kArithmetic>
struct HalfGradientProduct {
  using Element = TensorElement<kArithmetic>;
  static constexpr int kElementSize = 2, kChunkK = 64, kBoxColumns = 64;
  static constexpr bool kWeightRowsOfK = true;
  static constexpr int kLeftReaders = kGradientThreads / 128;

  /// Maps row r, of 16, of a warp to a row of the tile.
  static LLTM_DEVICE int row(int warp, int r) { return warp * 16 + r; }

  /// sum = the product over the next `chunks` chunks of the rings. release_right(barrier) signals
  /// that a slot is empty.
  template <int kColumns, typename Rings, typename Release>
  static LLTM_DEVICE void multiply(float (&sum)[kColumns / 2],
                                   Rings& rings,
                                   bool of_weights,
                                   int chunks,
                                   const Release& release_right) {
    if (of_weights) {
      run<kColumns, true>(sum, rings, chunks, release_right);
    } else {
      run<kColumns, false>(sum, rings, chunks, release_right);
    }
  }

 private:
  template <int kColumns, bool kRowsOfK, typename Rings, typename Release>
  static LLTM_DEVICE void run(float (&sum)[kColumns / 2],
                              Rings& rings,
                              int chunks,
                              const Release& release_right) {
    const int thread = static_cast<int>(threadIdx.x), group = thread / 128;
    clear(sum);
    uint32_t previous_left = 0, previous_right = 0;
    const auto release = [&] {
      if (thread % 128 == 0) {
        arrive(previous_left);
      }
      release_right(previous_right);
    };
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      rings.left.wait_full();
      rings.right.wait_full();
      const uint64_t a = describe_boxes<true>(rings.left.data() + group * kHalfBoxBytes);
      const uint64_t b = describe_boxes<kRowsOfK>(rings.right.data());
      fence_products();
      multiply_boxes<kArithmetic, true, kRowsOfK>(sum, a, b);
      commit_products();
      // The products of one chunk stay in flight while those of the next one start.
      wait_products<1>();
      if (chunk > 0) {
        release();
      }
      previous_left = rings.left.empty();
      previous_right = rings.right.empty();
      rings.left.advance();
      rings.right.advance();
    }
    wait_products<0>();
    keep_behind(sum);
    if (chunks > 0) {
      release();
    }
  }
};

/// Products in TF32. TMA rounds the operands.
struct Tf32GradientProduct {
  using Element = float;
  static constexpr int kElementSize = 4, kChunkK = 32, kBoxColumns = 32;
  static constexpr bool kWeightRowsOfK = false;
  static constexpr int kLeftReaders = kGradientThreads / 32;

  static LLTM_DEVICE int row(int warp, int r) { return row_of_fragment(warp, r); }

  template <int kColumns, typename Rings, typename Release>
  static LLTM_DEVICE void multiply(float (&sum)[kColumns / 2],
                                   Rings& rings,
                                   bool /*of_weights*/,
                                   int chunks,
                                   const Release& release_right) {
    clear(sum);
    if (chunks == 0) {
      return;
    }
    // Or the compiler would copy the sums of narrow tiles in the loop, and wait for each wgmma.
    keep_behind(sum);
    // A warp's rows of a chunk of the left operand, in boxes of 32x32 whose pieces of 16 bytes are
    // permuted. A fragment's second row is 4 further, and so in the next piece. Its second k is
    // also 4 further, and so its pieces are 4 further, too.
    const int thread = static_cast<int>(threadIdx.x);
    const uint32_t own = offset_in_boxes(row(thread / 32, thread % 32 / 4), thread % 4);
    // The left operand of a chunk is loaded while the previous chunk is multiplied.
    uint32_t a[2][4][4];
    const auto load = [&](uint32_t(&to)[4][4]) {
      rings.left.wait_full();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          to[step][i] = load_shared(((rings.left.data() + own) ^ (i % 2 * 16 + i / 2 * 64)) +
                                    i / 2 * 4 * 128 + step * 8 * 128);
        }
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) {
        arrive(rings.left.empty());
      }
      rings.left.advance();
    };
    load(a[0]);
    uint32_t previous = 0;
    const auto multiply_chunk = [&](int chunk, uint32_t(&current)[4][4], uint32_t(&next)[4][4]) {
      rings.right.wait_full();
      const uint64_t b = describe_matrix(rings.right.data());
      fence_products();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        multiply_group_tf32<false>(sum, current[step], b + step * 2);
      }
      commit_products();
      // The products of one chunk stay in flight while those of the next one start.
      wait_products<1>();
      keep_until_here(next);
      if (chunk > 0) {
        release_right(previous);
      }
      previous = rings.right.empty();
      rings.right.advance();
      if (chunk + 1 < chunks) {
        load(next);
      }
    };
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; chunk += 2) {
      multiply_chunk(chunk, a[0], a[1]);
      if (chunk + 1 < chunks) {
        multiply_chunk(chunk + 1, a[1], a[0]);
      }
    }
    wait_products<0>();
    keep_behind(sum);
    keep_until_here(a[0]);
    keep_until_here(a[1]);
    release_right(previous);
  }
};

template <Arithmetic kArithmetic>
using GradientProduct = std::conditional_t<kArithmetic == Arithmetic::kTf32,
                                           Tf32GradientProduct,
                                           HalfGradientProduct<kArithmetic>>;

}  // namespace lltm::cuda
