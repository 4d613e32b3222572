// The tiles that kernels are compiled for.
#pragma once

#include <cstdint>

namespace lltm::cuda {

/// The number of tiles that cover `size`. The last one may be partial.
inline int tiles_of(int64_t size, int64_t tile) {
  return static_cast<int>((size + tile - 1) / tile);
}

/// The chunks of K that a product leaves out, because `numbers` of the saved numbers, side by side,
/// have weights of zeros: whole ones only.
inline int chunks_of_zeros(int numbers, int64_t state_size, int chunk_columns) {
  return state_size % chunk_columns == 0 ? static_cast<int>(numbers * state_size / chunk_columns)
                                         : 0;
}

/// The largest cluster that every GPU with clusters supports, and the largest of some.
constexpr int kLargestCluster = 8, kLargestClusterOfAny = 16;

/// A block's tile of a product. In the forward, the columns are those of the hidden state, each
/// with all three gates. A launch function returns cudaErrorInvalidValue for a tile that it is not
/// compiled for.
struct TileShape {
  int rows, columns;
  int row_tiles = 1;  // of a cluster, which have the same columns and read the weights once

  bool operator==(const TileShape&) const = default;
};

/// The rows of a block's tile in the backward's products by wgmma in 16 bits and TF32, and the
/// threads that multiply.
constexpr int kGradientRows = 128, kGradientThreads = 256;

/// The columns of a block's tile by three TF32 products (products/wgmma_three_tf32.cuh), which has
/// 64 or 128 rows, and a chunk of its K. Some tiles of the forward have fewer columns.
constexpr int kThreeTf32Columns = 96, kThreeTf32Chunk = 32;

/// The most rows that a block of the few_rows kernels multiplies, and the warps per block of the
/// forward's.
constexpr int kFewRows = 8, kFewRowsWarps = 16;

/// The largest batch that the few_rows kernel of a cell's forward supports, in groups of rows that
/// each read the weights. Other kernels of few_rows support kFewRows.
constexpr int kFewRowsGroups = 2, kMostFewRows = kFewRowsGroups * kFewRows;

}  // namespace lltm::cuda
