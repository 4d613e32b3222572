// Clusters of blocks (sm_90 and newer). On older GPUs each block is a cluster by itself.
#pragma once

#include "device_function.h"

#include <cuda/ptx>

#include <cstdint>

namespace lltm::cuda {

LLTM_DEVICE unsigned cluster_index() {
#if __CUDA_ARCH__ >= 900
  return ::cuda::ptx::get_sreg_clusterid_x();
#else
  return blockIdx.x;
#endif
}
LLTM_DEVICE int cluster_rank() {
#if __CUDA_ARCH__ >= 900
  return static_cast<int>(::cuda::ptx::get_sreg_cluster_ctarank());
#else
  return 0;
#endif
}

/// The first of the `count` items that this block has, where kCluster blocks have as many each.
template <int kCluster>
LLTM_DEVICE int first_of_block(int count) {
  return kCluster == 1 ? 0 : cluster_rank() * count;
}

// The two halves of a barrier of all threads of the cluster. cluster_arrive orders no memory
// accesses.
LLTM_DEVICE void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n" ::: "memory");
#endif
}
LLTM_DEVICE void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");
#endif
}
// The first half, where the threads that wait read what this thread stored to the cluster's shared
// memory.
LLTM_DEVICE void cluster_arrive_with_stores() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\n" ::: "memory");
#endif
}

// Maps an address in this block's shared memory to the same place in block `block` of the cluster.
LLTM_DEVICE uint32_t address_in_block(uint32_t address, int block) {
  uint32_t there = address;
#if __CUDA_ARCH__ >= 900
  asm("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(there) : "r"(address), "r"(block));
#endif
  return there;
}

// Stores `value` at the place of `address` in block `block` of the cluster.
LLTM_DEVICE void store_in_block(uint32_t address, int block, float value) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.f32 [%0], %1;\n" ::"r"(address_in_block(address, block)),
               "f"(value)
               : "memory");
#endif
}
LLTM_DEVICE void store_in_block(uint32_t address, int block, double value) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.f64 [%0], %1;\n" ::"r"(address_in_block(address, block)),
               "d"(value)
               : "memory");
#endif
}

}  // namespace lltm::cuda
