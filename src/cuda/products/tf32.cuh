// Floats as operands in TF32.
#pragma once

#include "../ptx/mma.cuh"

#include <cstdint>

namespace lltm::cuda {

// x = high + low, to about 22 bits: high is x rounded to TF32, low the rest, of which the tensor
// core ignores what TF32 has no room for; the factor centres the error of that, up to half a unit
// of what remains. In integers, as the conversion instruction is emulated by four. The pattern of
// NaN that this turns into a zero in `high` still is NaN in `low`.
template <int kCount>
__device__ __forceinline__ void take_apart(uint32_t (&high)[kCount], uint32_t (&low)[kCount]) {
  constexpr float kCentre = 1 + 0x1.8p-12f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float x = __uint_as_float(high[i]);
    high[i] = (high[i] + 0x1000u) & 0xffffe000u;
    low[i] = __float_as_uint((x - __uint_as_float(high[i])) * kCentre);
  }
}

template <int kCount>
__device__ __forceinline__ void round_floats(uint32_t (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = round_to_tf32(__uint_as_float(values[i]));
  }
}

}  // namespace lltm::cuda
