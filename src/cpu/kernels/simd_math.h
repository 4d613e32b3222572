// exp, expm1 and tanh on vectors: the Math policy that cell.h requires.
#pragma once

#include "simd.h"

#include <cmath>

namespace lltm::cpu {
namespace {

/// The Math policy of cell.h on vectors. In float: the range reductions and polynomials of the
/// Cephes library's expf and tanhf (Moshier), with errors of at most 2 ulp. In double: the standard
/// functions, lane by lane.
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
    // Beyond these bounds the result is 0 or infinity anyway. NaN is preserved.
    const Reduced reduced = reduce(clamp(x, -104.0f, 89.0f));
    // 2^n in two factors: n may exceed the range of a float's exponent.
    const auto half = reduced.n >> 1;
    return (Float(1.0f) + reduced.expm1) * power_of_two(half) * power_of_two(reduced.n - half);
  }

  /// For x up to 88; for larger x the result stays finite.
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
    // Adding 1.5*2^23 rounds to an integer and leaves it in the low bits.
    const Float shift(12582912.0f);
    const Float shifted = x * Float(1.44269504088896341f) + shift;
    const Float n = shifted - shift;
    // log(2) in two parts. The first has so few bits that its product with n is exact.
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

}  // namespace
}  // namespace lltm::cpu
