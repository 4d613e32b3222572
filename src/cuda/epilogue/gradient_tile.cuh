// Writes tiles of the gradients (sm_90a): from the registers where wgmma leaves the sums, through
// shared memory, to rows that start anywhere. A warpgroup has 64 rows of a tile and writes them in
// blocks of columns. d_old_h and d_input are transposed on the way (schedule_gradients.h).
#pragma once

#include "../products/wgmma_gradients.cuh"
#include "../ptx/registers.cuh"
#include "../scheduler/gradient_units.h"
#include "../tile/vectors.cuh"
#include "dealt_columns.cuh"

namespace lltm::cuda {

/// A problem, and how its results are written.
struct GradientResults : BackwardProblem {
  // Rows start at, and are as long as, multiples of this many bytes: the size of an element, 4 or
  // 16.
  int state_alignment, weight_alignment;
  int state_first, state_end;  // the rows of the state product that are wanted
  bool one_segment;            // whether d_weights has one segment of columns

  LLTM_HOST_DEVICE int alignment(bool of_weights) const {
    return of_weights ? weight_alignment : state_alignment;
  }
};

/// Their tensor maps. TMA can write rows that start at multiples of 16 bytes.
struct GradientResultMaps {
  CUtensorMap d_old_h, d_input, d_weights_h, d_weights_input;
};

// These store two 8x8 matrices of 16-bit elements. A lane holds a pair of each. Lane l provides the
// address of row l % 8 of matrix l % 16 / 8. Transposed, columns are stored as rows.
LLTM_DEVICE void store_matrices_x2(uint32_t address, uint32_t x, uint32_t y) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};\n" ::"r"(address), "r"(x), "r"(y)
      : "memory");
}
LLTM_DEVICE void store_matrices_x2_transposed(uint32_t address, uint32_t x, uint32_t y) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};\n" ::"r"(address),
               "r"(x),
               "r"(y)
               : "memory");
}

/// The shared memory in which a warpgroup stages a block of its tile, as rows of the results: 128
/// bytes each, swizzled. In float, rows of d_old_h and d_input take two boxes.
template <typename Product>
class GradientStaging {
 public:
  using Element = typename Product::Element;
  static constexpr int kSize = Product::kElementSize;
  static constexpr int kBytes = 8192, kColumns = kBytes / 64 / kSize;  // of the tile
  static constexpr int kBoxBytes = 4096;  // of d_old_h and d_input in float

  LLTM_DEVICE explicit GradientStaging(unsigned char* shared)
      : shared_(shared), thread_(static_cast<int>(threadIdx.x) % 128) {
    // In TF32 the compiler would otherwise compute all addresses of an epilogue before the product
    // and spill them.
    if constexpr (kSize == 4) {
      thread_ = in_register(thread_);
    }
  }

  /// Stages eight columns of the tile, from `column` of the block on. A thread holds two of its
  /// first row and two of its second. kDealt: in d_weights, column n has the sums of column
  /// dealt_column(n).
  template <bool kDealt = false>
  LLTM_DEVICE void put(bool of_weights, int column, float4 sums) const {
    const int warp = thread_ / 32, lane = thread_ % 32;
    if constexpr (kSize == 2) {
      const Vector<Element, 2> first{static_cast<Element>(sums.x), static_cast<Element>(sums.y)};
      const Vector<Element, 2> second{static_cast<Element>(sums.z), static_cast<Element>(sums.w)};
      const int matrix = lane / 8 % 2, r = lane % 8;
      const uint32_t base = shared_address(shared_);
      if (of_weights) {
        const int row = warp * 16 + matrix * 8 + r;
        store_matrices_x2(
            base + row * 128 + ((column / 8) ^ r) * 16, word_of(first), word_of(second));
      } else {
        store_matrices_x2_transposed(base + (column + r) * 128 + ((warp * 2 + matrix) ^ r) * 16,
                                     word_of(first),
                                     word_of(second));
      }
    } else {
      const float values[2][2] = {{sums.x, sums.y}, {sums.z, sums.w}};
      const int n = column + lane % 4 * 2;
      const int n_of_weights = kDealt ? column / 16 * 16 + lane % 4 * 4 + column % 16 / 4 : n;
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        const int m = Product::row(warp, lane / 4 + below * 8);
        if (of_weights) {
          *reinterpret_cast<float2*>(shared_ + offset(m, n_of_weights * 4)) =
              make_float2(values[below][0], values[below][1]);
        } else {
          *reinterpret_cast<float*>(shared_ + offset(n, m * 4)) = values[below][0];
          *reinterpret_cast<float*>(shared_ + offset(n + 1, m * 4)) = values[below][1];
        }
      }
    }
  }

  /// Stages and writes `groups` groups of eight columns, a power of two, from column `first` of the
  /// unit's tile on. Called by all threads that multiply.
  template <bool kDealt, int kMost>
  LLTM_DEVICE void write_groups(const GradientResults& results,
                                const GradientUnit& unit,
                                const float4 (&sums)[kMost],
                                int groups,
                                int first) const {
    const int group = static_cast<int>(threadIdx.x) / 128;
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (i < groups) {
        put<kDealt>(unit.of_weights, i * 8, sums[i]);
      }
    }
    sync_threads_of<128>(1 + group);
    write(results, unit, unit.row + group * 64, groups * 8, first);
  }

  /// Writes the first `columns` columns of the block, a power of two. The block starts at column
  /// unit.column + first of the product, and the warpgroup's rows at its row group_row. Called by
  /// all threads of the warpgroup, after a barrier of theirs.
  LLTM_DEVICE void write(const GradientResults& results,
                         const GradientUnit& unit,
                         int group_row,
                         int columns,
                         int first) const {
    const int alignment = results.alignment(unit.of_weights);
    if (alignment == 16) {
      write_vectors<16>(results, unit, group_row, columns, first);
    } else if (kSize == 2 && alignment == 4) {
      write_vectors<4>(results, unit, group_row, columns, first);
    } else {
      write_vectors<kSize>(results, unit, group_row, columns, first);
    }
  }

  /// Writes the whole block by TMA. Called by one thread, after a fence and a barrier of the
  /// warpgroup.
  LLTM_DEVICE void write_by_tma(const GradientResultMaps& maps,
                                const GradientResults& results,
                                const GradientUnit& unit,
                                int group_row,
                                int first) const {
    const uint32_t from = shared_address(shared_);
    if (unit.of_weights) {
      write_box_2d(from,
                   unit.second_segment ? &maps.d_weights_input : &maps.d_weights_h,
                   unit.column + first,
                   group_row);
      return;
    }
    // A box has columns of either d_old_h or d_input. TMA does not write what lies outside of
    // these.
    constexpr int kBoxColumns = kSize == 2 ? 64 : 32;
    const int state = static_cast<int>(results.state_size);
#pragma unroll
    for (int box = 0; box < 64 / kBoxColumns; ++box) {
      const int row = group_row + box * kBoxColumns;
      if (row < state && row >= results.state_first) {
        write_box_2d(from + box * kBoxBytes, &maps.d_old_h, row, unit.column + first);
      }
      if (row >= state && row < results.state_end) {
        write_box_2d(from + box * kBoxBytes, &maps.d_input, row - state, unit.column + first);
      }
    }
  }

 private:
  static LLTM_DEVICE int offset(int row, int byte) {
    return byte / 128 * kBoxBytes + row * 128 + ((byte / 16 % 8) ^ (row % 8)) * 16 + byte % 16;
  }

  template <int kVector>
  LLTM_DEVICE void write_vectors(const GradientResults& results,
                                 const GradientUnit& unit,
                                 int group_row,
                                 int columns,
                                 int first) const {
    constexpr int kElements = kVector / kSize;
    using Bits = Word<kVector>;
    // A thread writes the same columns in all of its rows.
    const int shift = 31 - __clz((unit.of_weights ? columns : 64) / kElements);
    const int c = (thread_ & ((1 << shift) - 1)) * kElements;
    const int64_t h = results.state_size, x = results.input_features;
    int64_t rows, stride;
    Element* to;
    bool inside;
    if (unit.of_weights) {
      const int64_t of_segment = unit.column + first + c;
      const int64_t to_column = of_segment + (unit.second_segment ? h : 0);
      rows = min(int64_t(64), 3 * h - group_row);
      stride = h + x;
      inside = to_column < (unit.second_segment || results.one_segment ? h + x : h);
      to = static_cast<Element*>(results.d_weights.of_h) + group_row * stride + to_column;
    } else {
      const int64_t m = group_row + c, row = unit.column + first;
      const bool of_h = m < h;
      rows = min(int64_t(columns), results.batch - row);
      stride = of_h ? h : x;
      inside = m >= results.state_first && m < results.state_end;
      to = static_cast<Element*>(of_h ? results.d_old_h : results.d_input) + row * stride +
           (of_h ? m : m - h);
    }
    if (inside) {
#pragma unroll 2
      for (int row = thread_ >> shift; row < rows; row += 128 >> shift) {
        __stcg(reinterpret_cast<Bits*>(to + row * stride),
               *reinterpret_cast<const Bits*>(shared_ + offset(row, c * kSize)));
      }
    }
  }

  unsigned char* const shared_;
  int thread_;  // of the warpgroup
};

}  // namespace lltm::cuda
