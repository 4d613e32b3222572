// The operands that the lanes of a register tile multiply, for each type.
#pragma once

#include "access.h"

namespace lltm::cpu {
namespace {

/// An operand of a lane of a register tile: a factor of one term of its sum.
template <typename scalar_t>
struct Operand {
  using real = typename Access<scalar_t>::real;
  using Vector = typename Simd<real>::Vector;
  /// The type that a single operand is read as.
  using Scalar = real;
  /// The number of terms that a lane adds at once.
  static constexpr int64_t kTerms = 1;

  /// Whether this many terms of a row can be broadcast without copying them.
  static constexpr bool in_place(int64_t) { return sizeof(scalar_t) == sizeof(real); }
  static LLTM_INLINE Vector broadcast(const Scalar* from) {
    real scalar;
    std::memcpy(&scalar, from, sizeof(scalar));  // `from` may be unaligned
    return Simd<real>(scalar).value;
  }
  static LLTM_INLINE Vector multiply_add(Vector sum, Vector a, Vector b) { return sum + a * b; }
  /// `count` successive terms of one sum; the other lanes are zero.
  static LLTM_INLINE Simd<real> along(const scalar_t* from, int64_t count) {
    return Access<scalar_t>::load(from, count);
  }
  /// The next kTerms terms, one per row, of `count` sums side by side, beginning with `column`. A
  /// null row counts as zero.
  static LLTM_INLINE Simd<real> across(const scalar_t* (&rows)[kTerms],
                                       int64_t column,
                                       int64_t count) {
    return Access<scalar_t>::load(rows[0] + column, count);
  }
};

#if defined(LLTM_BFLOAT16_DOT)
/// A pair of factors, for two terms at once, in the size of a float. The instruction treats
/// subnormal numbers as zero.
template <>
struct Operand<c10::BFloat16> {
  using real = float;
  using Vector = Simd<float>::Vector;
  typedef uint32_t Scalar __attribute__((aligned(1), may_alias));
  static constexpr int64_t kTerms = 2;

  static constexpr bool in_place(int64_t terms) { return terms % kTerms == 0; }
  static LLTM_INLINE Vector broadcast(const Scalar* from) { return (Vector)(WordLanes{} + *from); }
  static LLTM_INLINE Vector multiply_add(Vector sum, Vector a, Vector b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }
  static LLTM_INLINE Simd<float> along(const c10::BFloat16* from, int64_t count) {
    return (Vector)load_lanes<WordLanes>(from, count);
  }
  static LLTM_INLINE Simd<float> across(const c10::BFloat16* (&rows)[kTerms],
                                        int64_t column,
                                        int64_t count) {
    const auto words = [&](const c10::BFloat16* row) __attribute__((always_inline)) {
      return widen(load_lanes<HalfLanes>(row + column, count));
    };
    const WordLanes first = words(rows[0]);
    return (Vector)(rows[1] ? first | words(rows[1]) << 16 : first);
  }
};
#endif

}  // namespace
}  // namespace lltm::cpu
