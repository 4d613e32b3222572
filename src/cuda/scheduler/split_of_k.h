// Splitting the K of a tile across the blocks of a cluster, its ranks.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

namespace lltm::cuda {

/// The largest cluster that every Hopper GPU supports.
constexpr int kMaxSplit = 8;

/// How the blocks of a cluster divide the K of a tile, and its rows when they add the sums.
struct KSplit {
  int ranks;
  int chunks_a_rank, ranks_with_one_more;
  int rows_a_rank;

  __device__ __forceinline__ int first_chunk(int rank) const {
    return rank * chunks_a_rank + min(rank, ranks_with_one_more);
  }
};

inline KSplit split_of_k(int ranks, int chunks, int tile_rows) {
  return {ranks, chunks / ranks, chunks % ranks, (tile_rows + ranks - 1) / ranks};
}

}  // namespace lltm::cuda
