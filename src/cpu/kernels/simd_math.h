// exp, expm1 and tanh on vectors.
#pragma once

#include "simd.h"

namespace lltm::cpu {
namespace {

/// The range reduction x = n*log(2) + r, and the polynomial
/// exp(r) = 1 + r + kTerms[0]*r^2 + kTerms[1]*r^3 + ....
template <typename real>
struct ExpConstants;
/// Those of the Cephes library's expf (Moshier).
template <>
struct ExpConstants<float> {
  static constexpr float kLowest = -104, kHighest = 88;  // at the former, exp is 0
  // log(2) in two parts. The first has so few bits that its product with n is exact.
  static constexpr float kLog2High = 0.693359375f, kLog2Low = -2.12194440e-4f;
  static constexpr float kRounding = 0x1.8p23f;  // adding it rounds to an integer
  static constexpr float kTerms[] = {5.0000001201e-1f,
                                     1.6666665459e-1f,
                                     4.1665795894e-2f,
                                     8.3334519073e-3f,
                                     1.3981999507e-3f,
                                     1.9875691500e-4f};
};
/// The parts of log(2) of fdlibm's exp, and the Taylor series.
template <>
struct ExpConstants<double> {
  static constexpr double kLowest = -746, kHighest = 709;
  static constexpr double kLog2High = 6.93147180369123816490e-1;
  static constexpr double kLog2Low = 1.90821492927058770002e-10;
  static constexpr double kRounding = 0x1.8p52;
  static constexpr double kTerms[] = {1.0 / 2,
                                      1.0 / 6,
                                      1.0 / 24,
                                      1.0 / 120,
                                      1.0 / 720,
                                      1.0 / 5040,
                                      1.0 / 40320,
                                      1.0 / 362880,
                                      1.0 / 3628800,
                                      1.0 / 39916800,
                                      1.0 / 479001600,
                                      1.0 / 6227020800};
};

/// The Math policy of cell.h on vectors, with errors of at most 2 ulp, of tanh 3.
struct SimdMath {
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

  /// exp and expm1 are for x up to ExpConstants::kHighest; for larger x the result stays finite.
  template <typename real>
  static LLTM_INLINE Simd<real> exp(Simd<real> x) {
    const Reduced<real> reduced = reduce(x);
    return scale(Simd<real>(real(1)) + reduced.expm1, reduced.n);
  }
  template <typename real>
  static LLTM_INLINE Simd<real> expm1(Simd<real> x) {
    const Reduced<real> reduced = reduce(x);
    const Simd<real> power = scale(Simd<real>(real(1)), reduced.n);
    return power * reduced.expm1 + (power - Simd<real>(real(1)));
  }
  template <typename real>
  static LLTM_INLINE Simd<real> tanh(Simd<real> x) {
    const Simd<real> t = expm1(abs(x) + abs(x));
    return copy_sign(t / (t + Simd<real>(real(2))), x);
  }

 private:
  template <typename real>
  struct Reduced {
    Simd<real> expm1;  // exp(r) - 1, where x = n*log(2) + r
    Simd<real> n;
  };

  template <typename real>
  static LLTM_INLINE Reduced<real> reduce(Simd<real> x) {
    using Constants = ExpConstants<real>;
    x = clamp(x, Constants::kLowest, Constants::kHighest);
    const Simd<real> rounding(Constants::kRounding);
    const Simd<real> n = (x * Simd<real>(real(1.4426950408889634074)) + rounding) - rounding;
    const Simd<real> r =
        x - n * Simd<real>(Constants::kLog2High) - n * Simd<real>(Constants::kLog2Low);
    // The polynomial in pairs of terms, which do not wait for each other.
    const Simd<real> square = r * r;
    const auto pair = [&](int term) __attribute__((always_inline)) {
      return Simd<real>(Constants::kTerms[term + 1]) * r + Simd<real>(Constants::kTerms[term]);
    };
    constexpr int kCount = sizeof(Constants::kTerms) / sizeof(real);
    Simd<real> sum = pair(kCount - 2);
#pragma GCC unroll 8
    for (int term = kCount - 4; term >= 0; term -= 2) {
      sum = sum * square + pair(term);
    }
    return {sum * square + r, n};
  }

  /// x * 2^n
  template <typename real>
  static LLTM_INLINE Simd<real> scale(Simd<real> x, Simd<real> n) {
#if LLTM_SIMD_BYTES == 64
    if constexpr (sizeof(real) == 4) {
      return _mm512_maskz_scalef_ps(0xffff, x.value, n.value);
    } else {
      return _mm512_maskz_scalef_pd(0xff, x.value, n.value);
    }
#else
    // In two factors: n may exceed the range of an exponent.
    const auto whole = integer(n);
    const auto half = integer(n * Simd<real>(real(0.5)));
    return x * power_of_two<real>(half) * power_of_two<real>(whole - half);
#endif
  }

  /// NaN is preserved.
  template <typename real>
  static LLTM_INLINE Simd<real> clamp(Simd<real> x, real low, real high) {
    const Simd<real> least(low), most(high);
#if LLTM_SIMD_BYTES == 64
    // Two instructions, where gcc compiles the selections below to four.
    if constexpr (sizeof(real) == 4) {
      x = _mm512_maskz_max_ps(0xffff, least.value, x.value);
      return _mm512_maskz_min_ps(0xffff, most.value, x.value);
    } else {
      x = _mm512_maskz_max_pd(0xff, least.value, x.value);
      return _mm512_maskz_min_pd(0xff, most.value, x.value);
    }
#else
    x = where(x < least, least, x);
    return where(x > most, most, x);
#endif
  }
  template <typename real>
  static LLTM_INLINE typename Simd<real>::IntegerVector bits(Simd<real> x) {
    return (typename Simd<real>::IntegerVector)x.value;
  }
  /// The integers next to x.
  template <typename real>
  static LLTM_INLINE typename Simd<real>::IntegerVector integer(Simd<real> x) {
    const Simd<real> rounding(ExpConstants<real>::kRounding);
    return bits(x + rounding) - bits(rounding);
  }
  template <typename real>
  static LLTM_INLINE Simd<real> power_of_two(typename Simd<real>::IntegerVector n) {
    constexpr int kMantissa = sizeof(real) == 4 ? 23 : 52, kBias = sizeof(real) == 4 ? 127 : 1023;
    return (typename Simd<real>::Vector)((n + kBias) << kMantissa);
  }
  template <typename real>
  static LLTM_INLINE Simd<real> copy_sign(Simd<real> magnitude, Simd<real> sign) {
    const auto sign_bit = bits(Simd<real>(real(-0.0)));
    return (typename Simd<real>::Vector)((bits(magnitude) & ~sign_bit) | (bits(sign) & sign_bit));
  }
};

}  // namespace
}  // namespace lltm::cpu
