// Prefetching global memory into the L2 cache.
#pragma once

namespace lltm::cuda {

__device__ __forceinline__ void prefetch_to_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];\n" ::"l"(address));
}

}  // namespace lltm::cuda
