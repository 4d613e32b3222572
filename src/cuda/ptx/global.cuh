// Access to global memory.
#pragma once

#include <cstdint>

namespace lltm::cuda {

// Returns the 4 bytes at `from`, or zero if they do not exist. The compiler sees no branch. Not
// ld.global.nc: the previous kernel may write what is read after the wait for it.
__device__ __forceinline__ uint32_t load_word(const void* from, bool exists) {
  uint32_t word;
  asm volatile(
      "{\n"
      ".reg .pred exists;\n"
      "setp.ne.b32 exists, %2, 0;\n"
      "mov.b32 %0, 0;\n"
      "@exists ld.global.b32 %0, [%1];\n"
      "}\n"
      : "=&r"(word)
      : "l"(from), "r"(static_cast<int>(exists)));
  return word;
}

__device__ __forceinline__ void prefetch_to_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];\n" ::"l"(address));
}

}  // namespace lltm::cuda
