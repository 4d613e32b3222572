// Values that stay in registers through a loop.
#pragma once

namespace lltm::cuda {

// Otherwise the compiler computes the value again at each step.
template <typename Value>
__device__ __forceinline__ Value in_register(Value value) {
  if constexpr (sizeof(Value) == 8) {
    asm volatile("" : "+l"(value));
  } else {
    asm volatile("" : "+r"(value));
  }
  return value;
}

}  // namespace lltm::cuda
