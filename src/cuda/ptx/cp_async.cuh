// Asynchronous copies from global to shared memory by single threads (cp.async, sm_80 and newer).
#pragma once

#include "device_function.h"

#include <cstdint>

namespace lltm::cuda {

// Copies 16, 8 or 4 bytes to shared memory asynchronously. The bytes from `valid` on become zero.
template <int kBytes>
LLTM_DEVICE void copy_async(uint32_t to, const void* from, int valid) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(valid)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;\n" ::"r"(to),
                 "l"(from),
                 "r"(valid),
                 "n"(kBytes)
                 : "memory");
  }
}

LLTM_DEVICE void commit_copies() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}

template <int kPending>
LLTM_DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

}  // namespace lltm::cuda
