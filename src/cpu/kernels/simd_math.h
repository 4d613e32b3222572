// exp, expm1 and tanh on vectors: the Math policy that cell.h requires.
#pragma once

#include "simd.h"

#include <cmath>

namespace lltm::cpu {
namespace {

/// The Math policy of cell.h on vectors. In float: the range reduction and the polynomial of the
/// Cephes library's expf (Moshier), with errors of at most 2 ulp, of tanh 2.5. In double: the
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

  /// exp and expm1 are for x up to 88; for larger x the result stays finite.
  static LLTM_INLINE Float exp(Float x) {
    const Reduced reduced = reduce(x);
    return scale(Float(1.0f) + reduced.expm1, reduced.n);
  }
  static LLTM_INLINE Float expm1(Float x) {
    const Reduced reduced = reduce(x);
    const Float power = scale(Float(1.0f), reduced.n);
    return power * reduced.expm1 + (power - Float(1.0f));
  }

  static LLTM_INLINE Float tanh(Float x) {
    const Float t = expm1(abs(x) + abs(x));
    return copy_sign(t / (t + Float(2.0f)), x);
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
    Float n;
  };

  static LLTM_INLINE Reduced reduce(Float x) {
    x = clamp(x, -104.0f, 88.0f);  // at -104, exp is 0
    // Adding 1.5*2^23 rounds to an integer.
    const Float shift(12582912.0f);
    const Float n = (x * Float(1.44269504088896341f) + shift) - shift;
    // log(2) in two parts. The first has so few bits that its product with n is exact.
    const Float r = x - n * Float(0.693359375f) - n * Float(-2.12194440e-4f);
    // The polynomial in pairs of terms, which do not wait for each other.
    const Float square = r * r;
    const Float high = Float(1.9875691500e-4f) * r + Float(1.3981999507e-3f);
    const Float middle = Float(8.3334519073e-3f) * r + Float(4.1665795894e-2f);
    const Float low = Float(1.6666665459e-1f) * r + Float(5.0000001201e-1f);
    return {((high * square + middle) * square + low) * square + r, n};
  }

  /// x * 2^n
  static LLTM_INLINE Float scale(Float x, Float n) {
#if LLTM_SIMD_BYTES == 64
    return _mm512_maskz_scalef_ps(0xffff, x.value, n.value);
#else
    // In two factors: n may exceed the range of a float's exponent.
    const auto whole = __builtin_convertvector(n.value, Float::IntegerVector);
    const auto half = whole >> 1;
    return x * power_of_two(half) * power_of_two(whole - half);
#endif
  }

  /// NaN is preserved.
  static LLTM_INLINE Float clamp(Float x, float low, float high) {
#if LLTM_SIMD_BYTES == 64
    // Two instructions, where gcc compiles the selections below to four.
    x = _mm512_maskz_max_ps(0xffff, Float(low).value, x.value);
    return _mm512_maskz_min_ps(0xffff, Float(high).value, x.value);
#else
    x = where(x < Float(low), Float(low), x);
    return where(x > Float(high), Float(high), x);
#endif
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

}  // namespace
}  // namespace lltm::cpu
