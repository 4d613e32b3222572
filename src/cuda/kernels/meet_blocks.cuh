// How the blocks of a cluster that multiply by wgmma begin.
#pragma once

#include "../ptx/barrier.cuh"
#include "../ptx/cluster.cuh"

namespace lltm::cuda {

/// Makes the barriers of the blocks of a cluster visible to the threads that use them. Called by
/// all threads of Product::kRowTiles * ranks blocks. kLoadsByTwo: two threads load, one per
/// operand.
template <typename Product, bool kLoadsByTwo>
LLTM_DEVICE void meet_blocks(int ranks) {
  __syncwarp();
  if (Product::kRowTiles * ranks == 1) {
    __syncthreads();
    return;
  }
  cluster_arrive();
  if (!kLoadsByTwo || Product::kRowTiles > 1 || threadIdx.x < Product::kFinishers) {
    cluster_wait();
  } else {
    // Loading uses only barriers of this block, which one of these two warps prepared.
    sync_threads_of<Product::kThreads - Product::kFinishers>(3);
  }
}

}  // namespace lltm::cuda
