// The grid of blocks that compute tiles, and splitting the K of a tile across the blocks of a
// cluster, its ranks.
#pragma once

#include "../ptx/device_function.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace lltm::cuda {

/// A block's chunks of K, in the order of its product.
struct KRange {
  int chunks;
  int early_chunks;  // the first ones, which need nothing of the previous kernel
  bool early;        // whether chunks may be loaded before that kernel is done
  // The blocks of the cluster that share the right operand are `peer`, peer + peer_step, ....
  int peer = 0, peer_step = 1;
};

/// How the blocks of a cluster divide the K of a tile, and its rows when they add the sums.
struct KSplit {
  int ranks;
  int chunks_a_rank, ranks_with_one_more;
  int rows_a_rank;

  LLTM_DEVICE int first_chunk(int rank) const {
    return rank * chunks_a_rank + min(rank, ranks_with_one_more);
  }
};

inline KSplit split_of_k(int ranks, int chunks, int tile_rows) {
  return {ranks, chunks / ranks, chunks % ranks, (tile_rows + ranks - 1) / ranks};
}

/// A grid with `ranks` blocks per tile. Rows of tiles that exceed the limit of y continue in z, in
/// whole groups of row_group rows: a block's row is y + gridDim.y * z, which may be past the last.
inline dim3 grid_of_tiles(int64_t row_tiles, int64_t column_tiles, int ranks, int row_group = 1) {
  constexpr int64_t kMaxY = 65535;
  const int64_t y = std::min(row_tiles, kMaxY / row_group * row_group);
  return dim3(static_cast<unsigned>(column_tiles * ranks),
              static_cast<unsigned>(y),
              static_cast<unsigned>((row_tiles + y - 1) / y));
}

}  // namespace lltm::cuda
