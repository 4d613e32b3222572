// Vectors of the instruction set that the including file is compiled for, and the cell's math on
// them. Include it after kernels.h and after the choice of the instruction set (see
// kernels_impl.h): everything here has internal linkage, so that every instruction set has its own.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#define LLTM_INLINE inline __attribute__((always_inline))

namespace lltm::cpu {
namespace {

// Not in Simd itself: gcc takes a vector of a template's parameter for the parameter.
template <typename real>
struct SimdTypes;
template <>
struct SimdTypes<float> {
  typedef float Vector __attribute__((vector_size(LLTM_SIMD_BYTES)));
  typedef Vector UnalignedVector __attribute__((aligned(sizeof(float)), may_alias));
  typedef int32_t IntegerVector __attribute__((vector_size(LLTM_SIMD_BYTES)));
};
template <>
struct SimdTypes<double> {
  typedef double Vector __attribute__((vector_size(LLTM_SIMD_BYTES)));
  typedef Vector UnalignedVector __attribute__((aligned(sizeof(double)), may_alias));
  typedef int64_t IntegerVector __attribute__((vector_size(LLTM_SIMD_BYTES)));
};

/// A vector of floats or doubles, with the arithmetic that cell.h asks of a value.
template <typename real>
struct Simd {
  using Vector = typename SimdTypes<real>::Vector;
  using UnalignedVector = typename SimdTypes<real>::UnalignedVector;
  using IntegerVector = typename SimdTypes<real>::IntegerVector;
  static constexpr int kLanes = LLTM_SIMD_BYTES / sizeof(real);

  Vector value;

  Simd() = default;
  LLTM_INLINE Simd(Vector vector) : value(vector) {}
  // x - 0 is x, -0 included, and no instruction; 0 + x is not.
  LLTM_INLINE explicit Simd(real scalar) : value(scalar - Vector{}) {}

  static LLTM_INLINE Simd load(const real* from) {
    return Vector(*reinterpret_cast<const UnalignedVector*>(from));
  }
  LLTM_INLINE void store(real* to) const { *reinterpret_cast<UnalignedVector*>(to) = value; }

  /// The first `count` lanes; the others are zero, and not stored.
  static LLTM_INLINE Simd load(const real* from, int64_t count) {
    if (count == kLanes) {
      return load(from);
    }
    Vector vector{};
    std::memcpy(&vector, from, count * sizeof(real));
    return vector;
  }
  LLTM_INLINE void store(real* to, int64_t count) const {
    if (count == kLanes) {
      store(to);
    } else {
      std::memcpy(to, &value, count * sizeof(real));
    }
  }

  friend LLTM_INLINE Simd operator+(Simd a, Simd b) { return a.value + b.value; }
  friend LLTM_INLINE Simd operator-(Simd a, Simd b) { return a.value - b.value; }
  friend LLTM_INLINE Simd operator*(Simd a, Simd b) { return a.value * b.value; }
  friend LLTM_INLINE Simd operator/(Simd a, Simd b) { return a.value / b.value; }
  friend LLTM_INLINE Simd operator-(Simd a) { return -a.value; }
  friend LLTM_INLINE IntegerVector operator<(Simd a, Simd b) { return a.value < b.value; }
  friend LLTM_INLINE IntegerVector operator>(Simd a, Simd b) { return a.value > b.value; }
  friend LLTM_INLINE IntegerVector operator>=(Simd a, Simd b) { return a.value >= b.value; }
};

/// The Math policy of cell.h on vectors. In float: the range reductions and polynomials of
/// the Cephes library's expf and tanhf (Moshier), within 2 units of the last place. In double: the
/// standard functions, lane by lane.
struct SimdMath {
  using Float = Simd<float>;
  using Double = Simd<double>;

  template <typename Mask, typename real>
  static LLTM_INLINE Simd<real> where(Mask condition, Simd<real> yes, Simd<real> no) {
    return typename Simd<real>::Vector(condition ? yes.value : no.value);
  }
  template <typename real>
  static LLTM_INLINE Simd<real> reciprocal(Simd<real> x) {
    return Simd<real>(real(1)) / x;
  }
  template <typename real>
  static LLTM_INLINE Simd<real> abs(Simd<real> x) {
    return copy_sign(x, Simd<real>(real(0)));
  }

  static LLTM_INLINE Float exp(Float x) {
    // Beyond these the result is 0 or infinity anyway; a NaN passes.
    const Reduced reduced = reduce(clamp(x, -104.0f, 89.0f));
    // 2^n in two factors: n itself may leave the range of a float's exponent.
    const auto half = reduced.n >> 1;
    return (Float(1.0f) + reduced.expm1) * power_of_two(half) * power_of_two(reduced.n - half);
  }

  /// For x up to 88, above which it stays finite.
  static LLTM_INLINE Float expm1(Float x) {
    const Reduced reduced = reduce(clamp(x, -25.0f, 88.0f));
    const Float scale = power_of_two(reduced.n);
    return scale * reduced.expm1 + (scale - Float(1.0f));
  }

  static LLTM_INLINE Float tanh(Float x) {
    const Float magnitude = abs(x);
    const Float large = Float(1.0f) - Float(2.0f) / (Float(1.0f) + exp(Float(2.0f) * magnitude));
    const Float square = x * x;
    Float p(-5.70498872745e-3f);
    p = p * square + Float(2.06390887954e-2f);
    p = p * square - Float(5.37397155531e-2f);
    p = p * square + Float(1.33314422036e-1f);
    p = p * square - Float(3.33332819422e-1f);
    const Float small = p * square * x + x;
    return where(magnitude < Float(0.625f), small, copy_sign(large, x));
  }

  static LLTM_INLINE Double exp(Double x) {
    return each_lane(x, [](double lane) { return std::exp(lane); });
  }
  static LLTM_INLINE Double expm1(Double x) {
    return each_lane(x, [](double lane) { return std::expm1(lane); });
  }
  static LLTM_INLINE Double tanh(Double x) {
    return each_lane(x, [](double lane) { return std::tanh(lane); });
  }

 private:
  struct Reduced {
    Float expm1;  // exp(r) - 1, where x = n*log(2) + r
    Float::IntegerVector n;
  };

  static LLTM_INLINE Reduced reduce(Float x) {
    // Adding 1.5*2^23 rounds to an integer, and leaves it in the low bits.
    const Float shift(12582912.0f);
    const Float shifted = x * Float(1.44269504088896341f) + shift;
    const Float n = shifted - shift;
    // log(2) in two parts, the first short enough for n times it to be exact.
    const Float r = x - n * Float(0.693359375f) - n * Float(-2.12194440e-4f);
    Float p(1.9875691500e-4f);
    p = p * r + Float(1.3981999507e-3f);
    p = p * r + Float(8.3334519073e-3f);
    p = p * r + Float(4.1665795894e-2f);
    p = p * r + Float(1.6666665459e-1f);
    p = p * r + Float(5.0000001201e-1f);
    return {p * (r * r) + r, bits(shifted) - bits(shift)};
  }

  static LLTM_INLINE Float clamp(Float x, float low, float high) {
    x = where(x < Float(low), Float(low), x);
    return where(x > Float(high), Float(high), x);
  }
  template <typename real>
  static LLTM_INLINE typename Simd<real>::IntegerVector bits(Simd<real> x) {
    return (typename Simd<real>::IntegerVector)x.value;
  }
  static LLTM_INLINE Float power_of_two(Float::IntegerVector n) {
    return (Float::Vector)((n + 127) << 23);
  }
  template <typename real>
  static LLTM_INLINE Simd<real> copy_sign(Simd<real> magnitude, Simd<real> sign) {
    const auto sign_bit = bits(Simd<real>(real(-0.0)));
    return (typename Simd<real>::Vector)((bits(magnitude) & ~sign_bit) | (bits(sign) & sign_bit));
  }
  template <typename Function>
  static LLTM_INLINE Double each_lane(Double x, Function function) {
    for (int lane = 0; lane < Double::kLanes; ++lane) {
      x.value[lane] = function(x.value[lane]);
    }
    return x;
  }
};

/// Loads and stores of a tensor's type as vectors of its accumulation type.
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

/// The first `count` 16-bit values; the others are zero, and not stored.
template <typename Lanes, typename scalar_t>
LLTM_INLINE Lanes load_lanes(const scalar_t* from, int64_t count) {
  Lanes lanes;
  if (count * sizeof(scalar_t) == sizeof(lanes)) {
    std::memcpy(&lanes, from, sizeof(lanes));
  } else {
    lanes = Lanes{};
    std::memcpy(&lanes, from, count * sizeof(scalar_t));
  }
  return lanes;
}
template <typename Lanes, typename scalar_t>
LLTM_INLINE void store_lanes(const Lanes& lanes, scalar_t* to, int64_t count) {
  if (count * sizeof(scalar_t) == sizeof(lanes)) {
    std::memcpy(to, &lanes, sizeof(lanes));
  } else {
    std::memcpy(to, &lanes, count * sizeof(scalar_t));
  }
}

// Not __builtin_convertvector everywhere: gcc 12 makes two conversions of halves of it, by way of
// the stack. The forms with a mask, because those without make it warn of a variable in its own
// header (bug 105593).
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
    // As below, but that subnormal numbers become zero.
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
    // With a mask: see widen().
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

/// What a lane of a register tile multiplies: a factor of one term of its sum.
template <typename scalar_t>
struct Operand {
  using real = typename Access<scalar_t>::real;
  using Vector = typename Simd<real>::Vector;
  /// The type to read a single one by.
  using Scalar = real;
  /// Terms that a lane adds at once.
  static constexpr int64_t kTerms = 1;

  /// Whether so many terms of a row can be broadcast from where they lie.
  static constexpr bool in_place(int64_t) { return sizeof(scalar_t) == sizeof(real); }
  static LLTM_INLINE Vector broadcast(const Scalar* from) { return Simd<real>(*from).value; }
  static LLTM_INLINE Vector multiply_add(Vector sum, Vector a, Vector b) { return sum + a * b; }
  /// Successive terms of one sum, `count` of them; zero beyond.
  static LLTM_INLINE Simd<real> along(const scalar_t* from, int64_t count) {
    return Access<scalar_t>::load(from, count);
  }
  /// The next terms, up to kTerms, of `count` sums side by side; zero beyond.
  static LLTM_INLINE Simd<real> across(const scalar_t* from,
                                       int64_t /*stride*/,
                                       int64_t /*terms*/,
                                       int64_t count) {
    return Access<scalar_t>::load(from, count);
  }
};

#if defined(LLTM_BFLOAT16_DOT)
/// A factor of two terms at once, in the place of a float. The instruction takes subnormal numbers
/// for zero.
template <>
struct Operand<c10::BFloat16> {
  using real = float;
  using Vector = Simd<float>::Vector;
  typedef uint32_t Scalar __attribute__((aligned(sizeof(c10::BFloat16)), may_alias));
  static constexpr int64_t kTerms = 2;

  static constexpr bool in_place(int64_t terms) { return terms % kTerms == 0; }
  static LLTM_INLINE Vector broadcast(const Scalar* from) { return (Vector)(WordLanes{} + *from); }
  static LLTM_INLINE Vector multiply_add(Vector sum, Vector a, Vector b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }
  static LLTM_INLINE Simd<float> along(const c10::BFloat16* from, int64_t count) {
    return (Vector)load_lanes<WordLanes>(from, count);
  }
  static LLTM_INLINE Simd<float> across(const c10::BFloat16* from,
                                        int64_t stride,
                                        int64_t terms,
                                        int64_t count) {
    const auto words = [&](const c10::BFloat16* at) __attribute__((always_inline)) {
      return widen(load_lanes<HalfLanes>(at, count));
    };
    const WordLanes first = words(from);
    return (Vector)(terms == kTerms ? first | words(from + stride) << 16 : first);
  }
};
#endif

}  // namespace
}  // namespace lltm::cpu
