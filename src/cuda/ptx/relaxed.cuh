// Access to memory that other blocks of the same grid read or write at the same time.
#pragma once

#include "device_function.h"

#include <cstdint>

namespace lltm::cuda {

// They pass by the L1 cache. Each 32-bit word is read and written as a whole; nothing is said about
// the order of several.
LLTM_DEVICE uint4 load_relaxed(const void* from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
LLTM_DEVICE void store_relaxed(void* to, uint32_t word) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;\n" ::"l"(to), "r"(word) : "memory");
}

// What this thread wrote before is visible to those who see what it writes afterwards and then have
// a fence of their own.
LLTM_DEVICE void fence_of_grid() {
  asm volatile("fence.acq_rel.gpu;\n" ::: "memory");
}

}  // namespace lltm::cuda
