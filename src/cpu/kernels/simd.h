// Vectors of floats and doubles, in the instruction set that the including file is compiled for:
// see table.h. Everything in these headers has internal linkage, so that each instruction set has
// its own copy.
#pragma once

#include <cstdint>
#include <cstring>

#define LLTM_INLINE inline __attribute__((always_inline))

namespace lltm::cpu {
namespace {

// Replace std::min and std::clamp: the linker could pick an inline function of a standard header
// that was compiled for this instruction set, and use it for all of them.
constexpr int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
constexpr int64_t clamp(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : smaller(value, high);
}
constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Outside of Simd because gcc treats a vector of a template parameter as the parameter itself.
template <typename real>
struct SimdTypes;
template <>
struct SimdTypes<float> {
  typedef float Vector __attribute__((vector_size(LLTM_SIMD_BYTES)));
  typedef int32_t IntegerVector __attribute__((vector_size(LLTM_SIMD_BYTES)));
};
template <>
struct SimdTypes<double> {
  typedef double Vector __attribute__((vector_size(LLTM_SIMD_BYTES)));
  typedef int64_t IntegerVector __attribute__((vector_size(LLTM_SIMD_BYTES)));
};

#if LLTM_SIMD_BYTES == 64
/// The mask of the first `count` bytes, fewer than 64.
constexpr uint64_t first_bytes(int64_t count) {
  return (uint64_t{1} << count) - 1;
}
#endif

/// Loads or stores the first `count` elements of a vector, at any address. The others are loaded as
/// zero and not stored.
template <typename Lanes, typename Element>
LLTM_INLINE Lanes load_lanes(const Element* from, int64_t count) {
  Lanes lanes;
  const int64_t bytes = count * sizeof(Element);
  if (bytes == sizeof(lanes)) {
    std::memcpy(&lanes, from, sizeof(lanes));
    return lanes;
  }
#if LLTM_SIMD_BYTES == 64
  if constexpr (sizeof(lanes) == 64) {
    lanes = (Lanes)_mm512_maskz_loadu_epi8(first_bytes(bytes), from);
  } else {
    lanes = (Lanes)_mm256_maskz_loadu_epi8(first_bytes(bytes), from);
  }
#else
  lanes = Lanes{};
  std::memcpy(&lanes, from, bytes);
#endif
  return lanes;
}
template <typename Lanes, typename Element>
LLTM_INLINE void store_lanes(const Lanes& lanes, Element* to, int64_t count) {
  const int64_t bytes = count * sizeof(Element);
  if (bytes == sizeof(lanes)) {
    std::memcpy(to, &lanes, sizeof(lanes));
    return;
  }
#if LLTM_SIMD_BYTES == 64
  if constexpr (sizeof(lanes) == 64) {
    _mm512_mask_storeu_epi8(to, first_bytes(bytes), (__m512i)lanes);
  } else {
    _mm256_mask_storeu_epi8(to, first_bytes(bytes), (__m256i)lanes);
  }
#else
  std::memcpy(to, &lanes, bytes);
#endif
}

/// A vector of floats or doubles, with the arithmetic that cell.h requires.
template <typename real>
struct Simd {
  using Vector = typename SimdTypes<real>::Vector;
  using IntegerVector = typename SimdTypes<real>::IntegerVector;
  static constexpr int kLanes = LLTM_SIMD_BYTES / sizeof(real);

  Vector value;

  Simd() = default;
  LLTM_INLINE Simd(Vector vector) : value(vector) {}
  // x - 0 is x, even for -0, and compiles to no instruction; 0 + x does not.
  LLTM_INLINE explicit Simd(real scalar) : value(scalar - Vector{}) {}

  static LLTM_INLINE Simd load(const real* from) { return load(from, kLanes); }
  LLTM_INLINE void store(real* to) const { store(to, kLanes); }

  /// See load_lanes() and store_lanes().
  static LLTM_INLINE Simd load(const real* from, int64_t count) {
    return load_lanes<Vector>(from, count);
  }
  LLTM_INLINE void store(real* to, int64_t count) const { store_lanes(value, to, count); }

  friend LLTM_INLINE Simd operator+(Simd a, Simd b) { return a.value + b.value; }
  friend LLTM_INLINE Simd operator-(Simd a, Simd b) { return a.value - b.value; }
  friend LLTM_INLINE Simd operator*(Simd a, Simd b) { return a.value * b.value; }
  friend LLTM_INLINE Simd operator/(Simd a, Simd b) { return a.value / b.value; }
  friend LLTM_INLINE Simd operator-(Simd a) { return -a.value; }
  friend LLTM_INLINE IntegerVector operator<(Simd a, Simd b) { return a.value < b.value; }
  friend LLTM_INLINE IntegerVector operator>(Simd a, Simd b) { return a.value > b.value; }
  friend LLTM_INLINE IntegerVector operator>=(Simd a, Simd b) { return a.value >= b.value; }
};

}  // namespace
}  // namespace lltm::cpu
