// Asynchronous copies from global to shared memory by single threads (cp.async, sm_80 and newer).
#pragma once

#include <cstdint>

namespace lltm::cuda {

// Copies 16 bytes to shared memory asynchronously. The bytes from `valid` on become zero.
__device__ __forceinline__ void copy_async_16(uint32_t to, const void* from, int valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(valid));
}

__device__ __forceinline__ void copy_async_8(uint32_t to, const void* from, int valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;\n" ::"r"(to), "l"(from), "r"(valid));
}

__device__ __forceinline__ void copy_async_4(uint32_t to, const void* from, int valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to), "l"(from), "r"(valid));
}

__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;\n");
}

template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending));
}

}  // namespace lltm::cuda
