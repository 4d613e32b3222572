// Loads and stores of tensors of every type as vectors of the accumulation type.
#pragma once

#include "simd.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace lltm::cpu {
namespace {

template <typename scalar_t>
struct Access {
  using real = scalar_t;
  static LLTM_INLINE Simd<real> load(const scalar_t* from, int64_t count) {
    return Simd<real>::load(from, count);
  }
  static LLTM_INLINE void store(Simd<real> value, scalar_t* to, int64_t count) {
    value.store(to, count);
  }
};

typedef uint16_t HalfLanes __attribute__((vector_size(LLTM_SIMD_BYTES / 2)));
typedef uint32_t WordLanes __attribute__((vector_size(LLTM_SIMD_BYTES)));

// gcc 12 compiles __builtin_convertvector to two conversions of halves by way of the stack, so
// intrinsics are used where there are any. They are the masked ones because the others cause a
// warning about a variable in gcc's own header (bug 105593).
LLTM_INLINE WordLanes widen(HalfLanes halves) {
#if LLTM_SIMD_BYTES == 64
  return (WordLanes)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)halves);
#elif LLTM_SIMD_BYTES == 32
  return (WordLanes)_mm256_cvtepu16_epi32((__m128i)halves);
#else
  return __builtin_convertvector(halves, WordLanes);
#endif
}
LLTM_INLINE HalfLanes narrow(WordLanes words) {
#if LLTM_SIMD_BYTES == 64
  return (HalfLanes)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)words);
#else
  return __builtin_convertvector(words, HalfLanes);
#endif
}

template <>
struct Access<c10::BFloat16> {
  using real = float;
  static LLTM_INLINE Simd<float> load(const c10::BFloat16* from, int64_t count) {
    return (Simd<float>::Vector)(widen(load_lanes<HalfLanes>(from, count)) << 16);
  }
  static LLTM_INLINE void store(Simd<float> value, c10::BFloat16* to, int64_t count) {
#if defined(LLTM_BFLOAT16_DOT)
    // As below, except that subnormal numbers become zero.
    const HalfLanes halves = (HalfLanes)_mm512_cvtneps_pbh(value.value);
#else
    const WordLanes word = (WordLanes)value.value;
    const WordLanes to_nearest_even = (word + 0x7fff + ((word >> 16) & 1)) >> 16;
    const WordLanes quiet_nan = WordLanes{} + 0x7fc0;
    const auto is_nan = value.value != value.value;
    const HalfLanes halves = narrow((WordLanes)(is_nan ? quiet_nan : to_nearest_even));
#endif
    store_lanes(halves, to, count);
  }
};

template <>
struct Access<c10::Half> {
  using real = float;
  static LLTM_INLINE Simd<float> load(const c10::Half* from, int64_t count) {
    const auto lanes = load_lanes<HalfLanes>(from, count);
#if LLTM_SIMD_BYTES == 64
    // Masked: see widen().
    return Simd<float>::Vector(_mm512_maskz_cvtph_ps(0xffff, (__m256i)lanes));
#elif LLTM_SIMD_BYTES == 32
    return Simd<float>::Vector(_mm256_cvtph_ps((__m128i)lanes));
#else
    Simd<float> value;
    for (int lane = 0; lane < Simd<float>::kLanes; ++lane) {
      value.value[lane] = c10::Half(lanes[lane], c10::Half::from_bits());
    }
    return value;
#endif
  }
  static LLTM_INLINE void store(Simd<float> value, c10::Half* to, int64_t count) {
#if LLTM_SIMD_BYTES == 64
    const __m256i lanes = _mm512_maskz_cvtps_ph(0xffff, value.value, _MM_FROUND_TO_NEAREST_INT);
#elif LLTM_SIMD_BYTES == 32
    const __m128i lanes = _mm256_cvtps_ph(value.value, _MM_FROUND_TO_NEAREST_INT);
#else
    HalfLanes lanes;
    for (int lane = 0; lane < Simd<float>::kLanes; ++lane) {
      lanes[lane] = c10::Half(value.value[lane]).x;
    }
#endif
    store_lanes(lanes, to, count);
  }
};

}  // namespace
}  // namespace lltm::cpu
