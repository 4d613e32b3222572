// The Math policies (cell/math.h) for threads that compute several elements at a time. They have no
// branches, not even that of a division, since elements would wait for each other at a branch.
#pragma once

#include "../../cell/math.h"
#include "../problem.h"
#include "../ptx/select.cuh"

#include <c10/util/BFloat16.h>

#include <type_traits>

namespace lltm::cuda {

/// exp(x) - 1 for x <= 0 or NaN, by kTerms terms of the series.
template <int kTerms>
LLTM_DEVICE float expm1_by_terms(float x) {
  float limited;  // propagates NaN
  asm("max.NaN.f32 %0, %1, %2;\n" : "=f"(limited) : "f"(x), "f"(-25.0f));
  // x = n ln 2 + r. Adding 1.5 * 2^23 rounds n to an integer.
  const float shifted = fmaf(limited, 1.44269504f, 12582912.0f);
  const float n = shifted - 12582912.0f;
  const float r = fmaf(n, -1.42860677e-6f, fmaf(n, -0.693145752f, limited));
  float p = 1.0f / 120;
  if constexpr (kTerms == 7) {
    p = fmaf(fmaf(r, 1.0f / 5040, 1.0f / 720), r, p);
  }
  p = fmaf(p, r, 1.0f / 24);
  p = fmaf(p, r, 1.0f / 6);
  p = fmaf(p, r, 0.5f);
  p = fmaf(p * r, r, r);
  const float scale = __int_as_float((__float_as_int(shifted) << 23) + 0x3f800000);
  return fmaf(scale, p, scale - 1.0f);
}

/// In float, within 2 units in the last place. exp and expm1 are for x <= 0: the cells discard them
/// for other x.
struct DeviceMath : cell::StandardMath {
  static LLTM_DEVICE float expm1(float x) { return expm1_by_terms<7>(x); }

  static LLTM_DEVICE float tanh(float x) {
    const float t = expm1(-2.0f * std::abs(x));
    // t / (t + 2), corrected for the rounding errors of the sum and the quotient: otherwise the
    // mean error of new_h in float32 is 5 to 10 % larger.
    const float sum = t + 2.0f, rest = t - (sum - 2.0f);
    const float r = reciprocal(sum), quotient = t * r;
    const float remainder = fmaf(-quotient, rest, fmaf(-quotient, sum, t));
    return copysignf(fmaf(remainder, r, quotient), x);
  }

  /// For x >= 1.
  static LLTM_DEVICE float reciprocal(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(r) : "f"(x));
    return r;
  }
};

/// For results that are rounded to TF32 or 16 bits: within 3 units in the last place of float,
/// except for exp, which is within |x| units.
struct RoundedMath : DeviceMath {
  static LLTM_DEVICE float exp(float x) {
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(e) : "f"(x * 1.44269504f));
    return e;
  }
  /// Zero below -88, where the result would be subnormal.
  static LLTM_DEVICE float sigmoid(float x) { return reciprocal(1.0f + exp(-x)); }
  static LLTM_DEVICE float tanh(float x) {
    const float t = expm1(-2.0f * std::abs(x));
    return copysignf(t * reciprocal(t + 2.0f), x);
  }
};

/// For the forward's results in bfloat16: relative errors of at most 2^-16 in expm1 and 2^-11 in
/// tanh, which leaves nothing of a small derivative.
struct ForwardBFloat16Math : RoundedMath {
  static LLTM_DEVICE float expm1(float x) { return expm1_by_terms<5>(x); }
  static LLTM_DEVICE float accurate_tanh(float x) { return RoundedMath::tanh(x); }
  static LLTM_DEVICE float tanh(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
  }
};

/// For the recurrence, where each function is on the path from one step to the next: in float,
/// within 4 units of 2^-24. Both sides of a selection are computed, so there are no branches.
struct ShortMath : cell::StandardMath {
  /// 2^(x * log2(e)), corrected for the rounding of the exponent. The correction does not wait for
  /// the power.
  static LLTM_DEVICE float exp(float x) {
    constexpr float kLog2E = 1.44269504f, kRestOfLog2E = 1.92596303e-8f, kLn2 = 0.693147181f;
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(power) : "f"(x * kLog2E));
    // Beyond 87 the power is that of the limit, zero or infinity, whatever the correction: that of
    // 87 is positive. Adding a product keeps bits of the correction that a factor of about one
    // lacks, whose error has a bias, which the cell state would add up.
    const float limited = fminf(fmaxf(x, -87.0f), 87.0f);
    const float rest = fmaf(limited, kRestOfLog2E, fmaf(limited, kLog2E, -limited * kLog2E));
    return fmaf(power, rest * kLn2, power);
  }

  static LLTM_DEVICE float sigmoid(float x) { return reciprocal(1.0f + exp(-x)); }

  /// For x <= 0.
  static LLTM_DEVICE float expm1(float x) {
    const float far = exp(x) - 1.0f;
    float p = fmaf(x, 1.0f / 40320, 1.0f / 5040);
    p = fmaf(p, x, 1.0f / 720);
    p = fmaf(p, x, 1.0f / 120);
    p = fmaf(p, x, 1.0f / 24);
    p = fmaf(p, x, 1.0f / 6);
    p = fmaf(p, x, 0.5f);
    return where(x > -0.5f, fmaf(x * x, p, x), far);
  }

  static LLTM_DEVICE float tanh(float x) {
    const float a = std::abs(x), square = x * x;
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(power) : "f"(a * 2.88539008f));
    const float far = fmaf(-2.0f, reciprocal(1.0f + power), 1.0f);
    // A polynomial within 5e-9 up to 0.56.
    float p = fmaf(square, -0.00654839727f, 0.0212764344f);
    p = fmaf(p, square, -0.053904074f);
    p = fmaf(p, square, 0.133330868f);
    p = fmaf(p, square, -0.333333318f);
    return where(a > 0.56f, copysignf(far, x), fmaf(x * square, p, x));
  }

  static LLTM_DEVICE float reciprocal(float x) { return DeviceMath::reciprocal(x); }

  /// Corrected for the errors of the sum and of the reciprocal.
  static LLTM_DEVICE float reciprocal_of_one_plus(float e) {
    const float sum = 1.0f + e, rest = e - (sum - 1.0f);
    const float r = reciprocal(sum);
    return fmaf(fmaf(-rest, r, fmaf(-sum, r, 1.0f)), r, r);
  }

  static LLTM_DEVICE float where(bool condition, float yes, float no) {
    return select(condition, yes, no);
  }
};

/// ShortMath for results that are rounded to 16 bits: relative errors of at most 2^-18, except for
/// exp, which is within |x| units of 2^-24.
struct ShortRoundedMath : ShortMath {
  static LLTM_DEVICE float exp(float x) { return RoundedMath::exp(x); }

  static LLTM_DEVICE float sigmoid(float x) { return reciprocal(1.0f + exp(-x)); }

  /// For x <= 0.
  static LLTM_DEVICE float expm1(float x) {
    const float far = exp(x) - 1.0f;
    float p = fmaf(x, 1.0f / 24, 1.0f / 6);
    p = fmaf(p, x, 0.5f);
    return where(x > -0.0625f, fmaf(x * x, p, x), far);
  }

  static LLTM_DEVICE float tanh(float x) {
    const float a = std::abs(x), square = x * x;
    const float far = fmaf(-2.0f, reciprocal(1.0f + exp(2.0f * a)), 1.0f);
    const float p = fmaf(square, 2.0f / 15, -1.0f / 3);
    return where(a > 0.125f, copysignf(far, x), fmaf(x * square, p, x));
  }
};

/// For the forward's results in bfloat16: relative errors of 2^-11 in tanh, from which the output
/// gate is computed, too.
struct ShortForwardBFloat16Math : ShortRoundedMath {
  static LLTM_DEVICE float tanh(float x) { return ForwardBFloat16Math::tanh(x); }
  static LLTM_DEVICE float accurate_tanh(float x) { return ShortRoundedMath::tanh(x); }
  static LLTM_DEVICE float output_gate(float x) { return fmaf(0.5f, tanh(0.5f * x), 0.5f); }
};

/// For tensors of scalar_t: double is computed in double, all other types in float.
template <typename scalar_t>
using TensorMath =
    std::conditional_t<sizeof(scalar_t) == 8,
                       cell::StandardMath,
                       std::conditional_t<sizeof(scalar_t) == 4, DeviceMath, RoundedMath>>;

/// For the sums of products in kArithmetic.
template <Arithmetic kArithmetic>
using ProductMath =
    std::conditional_t<kArithmetic == Arithmetic::kFloat32, DeviceMath, RoundedMath>;
template <Arithmetic kArithmetic>
using ForwardMath = std::conditional_t<kArithmetic == Arithmetic::kBFloat16,
                                       ForwardBFloat16Math,
                                       ProductMath<kArithmetic>>;
/// For the forward of the recurrence in 16 bits.
template <typename Element>
using ShortForwardMath = std::conditional_t<std::is_same_v<Element, c10::BFloat16>,
                                            ShortForwardBFloat16Math,
                                            ShortRoundedMath>;

}  // namespace lltm::cuda
