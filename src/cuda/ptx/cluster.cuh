// Clusters of blocks (sm_90 and newer). On older GPUs each block is a cluster by itself.
#pragma once

#include <cuda/ptx>

#include <cstdint>

namespace lltm::cuda {

__device__ __forceinline__ unsigned cluster_index() {
#if __CUDA_ARCH__ >= 900
  return ::cuda::ptx::get_sreg_clusterid_x();
#else
  return blockIdx.x;
#endif
}
__device__ __forceinline__ int cluster_rank() {
#if __CUDA_ARCH__ >= 900
  return static_cast<int>(::cuda::ptx::get_sreg_cluster_ctarank());
#else
  return 0;
#endif
}

/// The first of the `count` items that this block has, where kCluster blocks have as many each.
template <int kCluster>
__device__ __forceinline__ int first_of_block(int count) {
  return kCluster == 1 ? 0 : cluster_rank() * count;
}

// The two halves of a barrier of all threads of the cluster. cluster_arrive orders no memory
// accesses.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");
#endif
}
// The first half, where the threads that wait read what this thread stored to the cluster's shared
// memory.
__device__ __forceinline__ void cluster_arrive_with_stores() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\n" ::: "memory");
#endif
}

// Maps an address in this block's shared memory to the same place in block `block` of the cluster.
__device__ __forceinline__ uint32_t address_in_block(uint32_t address, int block) {
  uint32_t there = address;
#if __CUDA_ARCH__ >= 900
  asm("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(there) : "r"(address), "r"(block));
#endif
  return there;
}

// Stores `value` at the place of `address` in block `block` of the cluster.
__device__ __forceinline__ void store_in_block(uint32_t address, int block, float value) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.f32 [%0], %1;\n" ::"r"(address_in_block(address, block)),
               "f"(value)
               : "memory");
#endif
}
__device__ __forceinline__ void store_in_block(uint32_t address, int block, double value) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.f64 [%0], %1;\n" ::"r"(address_in_block(address, block)),
               "d"(value)
               : "memory");
#endif
}

}  // namespace lltm::cuda
