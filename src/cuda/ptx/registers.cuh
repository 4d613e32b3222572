// Values that stay in registers through a loop.
#pragma once

#include "device_function.h"

namespace lltm::cuda {

// Otherwise the compiler computes the value again at each step.
template <typename Value>
LLTM_DEVICE Value in_register(Value value) {
  if constexpr (sizeof(Value) == 8) {
    asm volatile("" : "+l"(value));
  } else {
    asm volatile("" : "+r"(value));
  }
  return value;
}

// Waits for a value that is being loaded, by an operation on it. Otherwise a loop would wait where
// it uses the value, in each iteration, and for its own loads as well. `zero` is 0, which the
// compiler must not know.
LLTM_DEVICE void wait_for(unsigned& value, unsigned zero) {
  value ^= zero;
}
LLTM_DEVICE void wait_for(float& value, unsigned zero) {
  value = __uint_as_float(__float_as_uint(value) ^ zero);
}

}  // namespace lltm::cuda
