// Barriers in shared memory (mbarrier), which count arrivals and the bytes of copies. Before sm_90
// all of this does nothing: each block is then a cluster by itself.
#pragma once

#include "device_function.h"

#include <cuda/ptx>

#include <cstdint>

namespace lltm::cuda {

namespace ptx = ::cuda::ptx;

// The toolkit's functions take pointers; our kernels use 32-bit addresses.
template <typename T = void>
LLTM_DEVICE T* at_shared(uint32_t address) {
  return static_cast<T*>(__cvta_shared_to_generic(address));
}
LLTM_DEVICE uint64_t* barrier_at(uint32_t address) {
  return at_shared<uint64_t>(address);
}

// Initializes a barrier. A phase completes after `count` arrivals and all expected bytes.
LLTM_DEVICE void init_barrier(uint32_t barrier, int count) {
#if __CUDA_ARCH__ >= 900
  ptx::mbarrier_init(barrier_at(barrier), static_cast<uint32_t>(count));
#endif
}
// Makes newly initialized barriers visible to the cluster and to asynchronous copies.
LLTM_DEVICE void fence_barriers() {
#if __CUDA_ARCH__ >= 900
  ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
#endif
}
LLTM_DEVICE void arrive(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  ptx::mbarrier_arrive(barrier_at(barrier));
#endif
}
LLTM_DEVICE void arrive_expecting(uint32_t barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  ptx::mbarrier_arrive_expect_tx(ptx::sem_release,
                                 ptx::scope_cta,
                                 ptx::space_shared,
                                 barrier_at(barrier),
                                 static_cast<uint32_t>(bytes));
#endif
}
// Arrives at a barrier of another block of the cluster. It orders no memory accesses beyond the
// block: a release at cluster scope, the only form the toolkit has, waits for all of the thread's
// accesses, about 0.6 us.
LLTM_DEVICE void arrive_in_cluster(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];\n" ::"r"(barrier) : "memory");
#endif
}
// Waits until the phase of this parity is complete. A newly initialized barrier has completed a
// phase of parity 1. It acquires at block scope. That also covers what other blocks sent to this
// block's shared memory, of which no cache holds an older copy; at cluster scope it would empty the
// L1 cache. The loop is part of the assembly because the compiler would
// unroll one around the toolkit's function.
LLTM_DEVICE void wait_phase(uint32_t barrier, uint32_t parity) {
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
