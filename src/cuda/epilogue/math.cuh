// The Math policy of cell.h where a thread has several elements at a time: no branches, not even a
// division's, behind which one element would wait for the other.
#pragma once

#include "../../cell.h"
#include "../problem.h"

#include <type_traits>

namespace lltm::cuda {

/// In float, within 2 units of the last place; exp and expm1 for x up to 0, beyond which cell.h
/// discards them.
struct DeviceMath {
  static __device__ __forceinline__ float exp(float x) { return std::exp(x); }

  static __device__ __forceinline__ float expm1(float x) {
    float limited;  // a NaN passes
    asm("max.NaN.f32 %0, %1, %2;\n" : "=f"(limited) : "f"(x), "f"(-25.0f));
    // x = n ln 2 + r, n rounded by a sum that has no room for less than one.
    const float shifted = fmaf(limited, 1.44269504f, 12582912.0f);
    const float n = shifted - 12582912.0f;
    const float r = fmaf(n, -1.42860677e-6f, fmaf(n, -0.693145752f, limited));
    float p = fmaf(r, 1.0f / 5040, 1.0f / 720);
    p = fmaf(p, r, 1.0f / 120);
    p = fmaf(p, r, 1.0f / 24);
    p = fmaf(p, r, 1.0f / 6);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p * r, r, r);
    const float scale = __int_as_float((__float_as_int(shifted) << 23) + 0x3f800000);
    return fmaf(scale, p, scale - 1.0f);
  }

  static __device__ __forceinline__ float tanh(float x) {
    const float t = expm1(-2.0f * std::abs(x));
    // t / (t + 2), corrected by what rounding leaves of the sum and of the quotient: without it the
    // mean error of new_h in float32 is 5 to 10 % larger.
    const float sum = t + 2.0f, rest = t - (sum - 2.0f);
    const float r = reciprocal(sum), quotient = t * r;
    const float remainder = fmaf(-quotient, rest, fmaf(-quotient, sum, t));
    return copysignf(fmaf(remainder, r, quotient), x);
  }

  /// For x from 1 to 2.
  static __device__ __forceinline__ float reciprocal(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(r) : "f"(x));
    return r;
  }

  static __device__ __forceinline__ float abs(float x) { return std::abs(x); }
  static __device__ __forceinline__ float where(bool condition, float yes, float no) {
    return condition ? yes : no;
  }
};

/// The same for results that are rounded to TF32 or 16 bits: within 3 units of float's last place,
/// but exp within |x| units.
struct RoundedMath : DeviceMath {
  static __device__ __forceinline__ float exp(float x) {
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(e) : "f"(x * 1.44269504f));
    return e;
  }
  static __device__ __forceinline__ float tanh(float x) {
    const float t = expm1(-2.0f * std::abs(x));
    return copysignf(t * reciprocal(t + 2.0f), x);
  }
};

/// For tensors of scalar_t, which are computed in float but for double.
template <typename scalar_t>
using TensorMath =
    std::conditional_t<sizeof(scalar_t) == 8,
                       cell::StandardMath,
                       std::conditional_t<sizeof(scalar_t) == 4, DeviceMath, RoundedMath>>;

/// Behind products formed in kArithmetic.
template <Arithmetic kArithmetic>
using ProductMath =
    std::conditional_t<kArithmetic == Arithmetic::kFloat32, DeviceMath, RoundedMath>;

}  // namespace lltm::cuda
