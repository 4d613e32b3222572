// Writes a tile of a gradient in float directly from the registers where wgmma leaves the sums
// (sm_90a). The columns of the tile are permuted as if dealt to the lanes in pairs, so that a
// thread has four neighbors of a row.
#pragma once

#include "../tile/elements.h"
#include "../tile/vectors.cuh"

namespace lltm::cuda {

/// The column whose sums are in column n of the product. Each group of 16 is permuted:
///   n       0 1 2 3  4  5  6  7  8 9 10 11 12 13 14 15
///   column  0 1 4 5  8  9 12 13  2 3  6  7 10 11 14 15
LLTM_DEVICE int dealt_column(int n) {
  return n / 16 * 16 + n % 8 / 2 * 4 + n % 16 / 8 * 2 + n % 2;
}

/// A tile in global memory.
struct TileOfResult {
  float* data;  // its first element
  int64_t stride;
  int64_t rows, columns;  // that exist from the first element on
  bool at_vectors;        // whether its rows start at, and end before, multiples of 16 bytes
};

// The nth four neighboring columns that a thread has of a row, the first or the one below.
template <int kSums>
LLTM_DEVICE float4 dealt_four(const float (&sum)[kSums], int n, int below) {
  const float* const from = sum + n * 8 + below * 2;
  return make_float4(from[0], from[1], from[4], from[5]);
}

// Writes a thread's fours of a row that starts anywhere, of which `columns` columns exist from `to`
// on: from the first multiple of 16 bytes in its own four, `shift` columns on, with what the next
// thread has in front of its own. All threads of a warp call it.
template <int kSums>
LLTM_DEVICE void write_shifted_fours(
    float* to, int shift, int columns, const float (&sum)[kSums], int below, int lane) {
  constexpr int kFours = kSums / 8;
  const auto write = [&](const float(&values)[4], int first, int end) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (first + i < end) {
        to[first + i] = values[i];
      }
    }
  };
  if (lane % 4 == 0) {
    const float4 four = dealt_four(sum, 0, below);
    write({four.x, four.y, four.z, four.w}, 0, min(shift, columns));
  }
#pragma unroll
  for (int n = 0; n < kFours; ++n) {
    // What follows the last lane's four is the first lane's next one.
    const float4 own = dealt_four(sum, n, below);
    const float4 sent = lane % 4 == 0 ? dealt_four(sum, min(n + 1, kFours - 1), below) : own;
    const int next = lane / 4 * 4 + (lane + 1) % 4;
    const float of_next[3] = {__shfl_sync(~0u, sent.x, next),
                              __shfl_sync(~0u, sent.y, next),
                              __shfl_sync(~0u, sent.z, next)};
    float values[7] = {own.x, own.y, own.z, own.w, of_next[0], of_next[1], of_next[2]};
    move_to_front(values, shift);
    const int first = n * 16 + shift;
    if (first + 4 <= columns) {
      *reinterpret_cast<float4*>(to + first) =
          make_float4(values[0], values[1], values[2], values[3]);
    } else {
      write({values[0], values[1], values[2], values[3]}, first, columns);
    }
  }
}

/// Writes a warp's 16 rows of a tile. row_of(r) is row r of these, within the tile.
template <typename RowOf, int kSums>
LLTM_DEVICE void write_dealt_columns(const TileOfResult& tile,
                                     const RowOf& row_of,
                                     const float (&sum)[kSums]) {
  constexpr int kFours = kSums / 8;  // of a thread's row
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_column = lane % 4 * 4;
#pragma unroll
  for (int below = 0; below < 2; ++below) {
    const int row = row_of(lane / 4 + below * 8);
    const bool exists = row < tile.rows;
    float* const to = tile.data + row * tile.stride + first_column;
    if (tile.at_vectors) {
#pragma unroll
      for (int n = 0; n < kFours; ++n) {
        if (exists && first_column + n * 16 < tile.columns) {
          *reinterpret_cast<float4*>(to + n * 16) = dealt_four(sum, n, below);
        }
      }
    } else {
      const int shift = static_cast<int>(-reinterpret_cast<uintptr_t>(to) % 16 / 4);
      // Those of the tile and of the matrix.
      const int columns =
          exists ? at_most(tile.columns - first_column, kFours * 16 - first_column) : 0;
      write_shifted_fours(to, shift, columns, sum, below, lane);
    }
  }
}

}  // namespace lltm::cuda
