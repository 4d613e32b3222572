// Barriers in shared memory (mbarrier): they count arrivals, and the bytes of copies. sm_90 on;
// before it everything here does nothing, as in a block that is its own cluster.
#pragma once

#include <cstdint>

namespace lltm::cuda {

// A barrier that completes a phase with `count` arrivals, and all bytes that are expected.
__device__ __forceinline__ void init_barrier(uint32_t barrier, int count) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(count) : "memory");
#endif
}
// Makes fresh barriers known to the cluster, and to copies.
__device__ __forceinline__ void fence_barriers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
#endif
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
#endif
}
__device__ __forceinline__ void arrive_expecting(uint32_t barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes)
               : "memory");
#endif
}
// Arrives at a barrier of another block of the cluster. Orders no memory beyond the block: a
// release for the cluster would wait for all of the thread's accesses, some 0.6 us.
__device__ __forceinline__ void arrive_in_cluster(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];\n" ::"r"(barrier) : "memory");
#endif
}
// Until the phase of this parity is complete. A fresh barrier has completed one of parity 1.
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
