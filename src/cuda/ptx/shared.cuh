// Access to shared memory by 32-bit addresses.
#pragma once

#include "device_function.h"

#include <cstdint>

namespace lltm::cuda {

LLTM_DEVICE uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

LLTM_DEVICE void load_shared_4(uint32_t (&v)[4], uint32_t address) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(address)
               : "memory");
}
LLTM_DEVICE uint32_t load_shared(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];\n" : "=r"(value) : "r"(address) : "memory");
  return value;
}
LLTM_DEVICE uint32_t load_shared_half(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared.u16 %0, [%1];\n" : "=r"(value) : "r"(address) : "memory");
  return value;
}
LLTM_DEVICE void store_shared(uint32_t address, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(address), "r"(value) : "memory");
}
LLTM_DEVICE void store_shared_low_half(uint32_t address, uint32_t word) {
  asm volatile("st.shared.u16 [%0], %1;\n" ::"r"(address), "r"(word) : "memory");
}
LLTM_DEVICE void store_shared_4(uint32_t address, const uint32_t (&v)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(address),
               "r"(v[0]),
               "r"(v[1]),
               "r"(v[2]),
               "r"(v[3])
               : "memory");
}

// Synchronizes kThreads threads of the block at a named barrier.
template <int kThreads>
LLTM_DEVICE void sync_threads_of(int id) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "n"(kThreads) : "memory");
}

}  // namespace lltm::cuda
