// Operands of products: their layout, converting floats to TF32, and the left operand of wgmma in
// TF32 where M is contiguous, which passes through registers.
#pragma once

#include "../ptx/mma.cuh"

#include <cstdint>

namespace lltm::cuda {

// Which index of an operand is contiguous in memory: K, or the other one (M of A, N of B).
enum class Major { kK, kOther };

// x = high + low, to about 22 bits: high is x rounded to TF32, and low is the rest, which the
// tensor core truncates to TF32. The factor centers the error of the truncation, which is then up
// to half a unit in the last place of what remains. Rounding uses integers because the conversion
// instruction is emulated by four. The NaN whose bits become zero in `high` is still NaN in `low`.
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

// Maps row r, of 16, of a warp to a row of the tile, so that all floats of a fragment are in
// different banks where M is contiguous.
__device__ __forceinline__ int row_of_fragment(int warp, int r) {
  return warp / 2 * 32 + warp % 2 * 8 + r / 8 * 4 + r % 8 / 4 * 16 + r % 4;
}

// The offset of row m and column k of such an operand: boxes of 32x32, whose pieces of 16 bytes are
// permuted. k is less than 8.
__device__ __forceinline__ uint32_t offset_in_boxes(int m, int k) {
  return m / 32 * 4096 + k * 128 + ((m % 32 / 4) ^ k) * 16 + m % 4 * 4;
}

}  // namespace lltm::cuda
