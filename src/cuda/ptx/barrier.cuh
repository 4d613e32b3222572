// Barriers in shared memory (mbarrier): they count arrivals, and the bytes of copies. sm_90 on;
// before it everything here does nothing, as in a block that is its own cluster.
#pragma once

#include <cuda/ptx>

#include <cstdint>

namespace lltm::cuda {

namespace ptx = ::cuda::ptx;

// What the toolkit's functions take: pointers, where our kernels compute with 32-bit addresses.
template <typename T = void>
__device__ __forceinline__ T* at_shared(uint32_t address) {
  return static_cast<T*>(__cvta_shared_to_generic(address));
}
__device__ __forceinline__ uint64_t* barrier_at(uint32_t address) {
  return at_shared<uint64_t>(address);
}

// A barrier that completes a phase with `count` arrivals, and all bytes that are expected.
__device__ __forceinline__ void init_barrier(uint32_t barrier, int count) {
#if __CUDA_ARCH__ >= 900
  ptx::mbarrier_init(barrier_at(barrier), static_cast<uint32_t>(count));
#endif
}
// Makes fresh barriers known to the cluster, and to copies.
__device__ __forceinline__ void fence_barriers() {
#if __CUDA_ARCH__ >= 900
  ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
#endif
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  ptx::mbarrier_arrive(barrier_at(barrier));
#endif
}
__device__ __forceinline__ void arrive_expecting(uint32_t barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  ptx::mbarrier_arrive_expect_tx(ptx::sem_release,
                                 ptx::scope_cta,
                                 ptx::space_shared,
                                 barrier_at(barrier),
                                 static_cast<uint32_t>(bytes));
#endif
}
// Arrives at a barrier of another block of the cluster. Orders no memory beyond the block: a
// release for the cluster, all that the toolkit has, would wait for all of the thread's accesses,
// some 0.6 us.
__device__ __forceinline__ void arrive_in_cluster(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];\n" ::"r"(barrier) : "memory");
#endif
}
// Until the phase of this parity is complete. A fresh barrier has completed one of parity 1. The
// loop is part of the assembly: around the toolkit's function the compiler unrolls it.
__device__ __forceinline__ void wait_phase(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

}  // namespace lltm::cuda
