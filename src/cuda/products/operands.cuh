// Operands of products: their layout, converting floats to TF32, and the left operand of wgmma in
// TF32 where M is contiguous, which passes through registers.
#pragma once

#include "../ptx/mma.cuh"

#include <cstdint>

namespace lltm::cuda {

// Which index of an operand is contiguous in memory: K, or the other one (M of A, N of B).
enum class Major { kK, kOther };

// The low part of x, given its high part in TF32. The tensor core truncates it to TF32; the factor
// centers the error of that, which is then up to half a unit in the last place of what remains.
LLTM_DEVICE uint32_t low_part(uint32_t x, uint32_t high) {
  constexpr float kCentre = 1 + 0x1.8p-12f;
  return __float_as_uint((__uint_as_float(x) - __uint_as_float(high)) * kCentre);
}

// x = high + low, to about 22 bits: high is x rounded to TF32. Rounding uses integers because the
// conversion instruction is emulated by four. The NaN whose bits become zero in `high` is still NaN
// in `low`.
template <int kCount>
LLTM_DEVICE void take_apart(uint32_t (&high)[kCount], uint32_t (&low)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const uint32_t x = high[i];
    high[i] = (x + 0x1000u) & 0xffffe000u;
    low[i] = low_part(x, high[i]);
  }
}

// The low parts of values whose high parts are what the tensor core reads of them: it ignores the
// bits that TF32 does not have.
template <int kCount>
LLTM_DEVICE void leave_low_parts(uint32_t (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = low_part(values[i], values[i] & 0xffffe000u);
  }
}

template <int kCount>
LLTM_DEVICE void round_floats(uint32_t (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = round_to_tf32(__uint_as_float(values[i]));
  }
}

// Maps row r, of 16, of a warp to a row of the tile, so that all floats of a fragment are in
// different banks where M is contiguous.
LLTM_DEVICE int row_of_fragment(int warp, int r) {
  return warp / 2 * 32 + warp % 2 * 8 + r / 8 * 4 + r % 8 / 4 * 16 + r % 4;
}

// The offset of row m and column k of such an operand: boxes of 32x32, whose pieces of 16 bytes are
// permuted. k is less than 8.
LLTM_DEVICE uint32_t offset_in_boxes(int m, int k) {
  return m / 32 * 4096 + k * 128 + ((m % 32 / 4) ^ k) * 16 + m % 4 * 4;
}

}  // namespace lltm::cuda
