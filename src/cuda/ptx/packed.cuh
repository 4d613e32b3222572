// Two 16-bit floating-point elements in a word (sm_80 and newer), and one element in a word.
#pragma once

#include "device_function.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>
#include <type_traits>

namespace lltm::cuda {

template <typename Element>
struct Packed;

template <>
struct Packed<c10::BFloat16> {
  static LLTM_DEVICE float low(uint32_t word) { return __uint_as_float(word << 16); }
  static LLTM_DEVICE float high(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }
  static LLTM_DEVICE uint32_t pack(float low, float high) {
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(word) : "f"(high), "f"(low));
    return word;
  }
};

template <>
struct Packed<c10::Half> {
  static LLTM_DEVICE float low(uint32_t word) { return value_of(word & 0xffffu); }
  static LLTM_DEVICE float high(uint32_t word) { return value_of(word >> 16); }
  static LLTM_DEVICE uint32_t pack(float low, float high) {
    uint32_t word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(word) : "f"(high), "f"(low));
    return word;
  }

 private:
  static LLTM_DEVICE float value_of(uint32_t half) {
    float value;
    asm("cvt.f32.f16 %0, %1;\n" : "=f"(value) : "h"(static_cast<uint16_t>(half)));
    return value;
  }
};

/// The value of an element that has a word to itself.
template <typename Element>
LLTM_DEVICE float value_of_word(uint32_t word) {
  if constexpr (std::is_same_v<Element, float>) {
    return __uint_as_float(word);
  } else {
    return Packed<Element>::low(word);
  }
}

}  // namespace lltm::cuda
