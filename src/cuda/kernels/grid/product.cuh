// The products of the recurrence across the grid, by mma.sync.
//
// Weights are operand A and stay in registers for all steps, some of them in shared memory. In 16
// bits, a lane's 16 bytes of a granule are two operands of m16n8k16, whose K is permuted alike in
// both operands. In float32 the forward has *planes*: x = high + low / 2^11, both float16, and
// multiplies high high, high low and low high. Rows of weights and h are scaled by powers of two so
// that float16 has their range. TF32 is the high plane alone: float16 has as many bits. The
// gradients of gates have no bounds, so the backward multiplies in TF32, in float32 three times.
#pragma once

#include "../../ptx/mma.cuh"
#include "../../ptx/registers.cuh"
#include "../../ptx/shared.cuh"
#include "grid.h"

#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace lltm::cuda {

constexpr float kLowPlane = 2048.0f;
/// What h is multiplied by in the planes: it is at most 1.
constexpr float kScaleOfH = 16384.0f;

LLTM_DEVICE float high_part(float x) {
  return __half2float(__float2half_rn(x));
}
LLTM_DEVICE float low_part(float x) {
  return (x - high_part(x)) * kLowPlane;
}
LLTM_DEVICE uint32_t half_bits(float x) {
  return __half_as_ushort(__float2half_rn(x));
}

/// The power of two that brings a maximum, given by its bits, to between 2^14 and 2^15, or 1 over
/// it.
LLTM_DEVICE float scale_of(uint32_t bits_of_maximum, bool inverse) {
  const int exponent = static_cast<int>(bits_of_maximum >> 23) - 127;
  const int scale = bits_of_maximum == 0 ? 0 : max(min(14 - exponent, 126), -126);
  return __int_as_float((127 + (inverse ? -scale : scale)) << 23);
}

/// Whether it is 1 over the scale of a maximum that is an infinity or a NaN.
LLTM_DEVICE bool is_of_infinite(float inverse_scale) {
  return inverse_scale == scale_of(0x7f800000u, true);
}

LLTM_DEVICE float inverse_of_power(float power) {
  return __uint_as_float(0x7f000000u - __float_as_uint(power));
}

/// x = high + low in TF32, where high is x rounded. Volatile: otherwise the parts of weights would
/// be computed before the loop and kept.
LLTM_DEVICE void split_tf32(uint32_t x, uint32_t& high, uint32_t& low) {
  asm volatile(
      "{\n"
      ".reg .b32 h;\n"
      "add.u32 h, %2, 0x1000;\n"
      "and.b32 h, h, 0xffffe000;\n"
      "sub.f32 %1, %2, h;\n"
      "mov.b32 %0, h;\n"
      "}\n"
      : "=&r"(high), "=&r"(low)
      : "r"(x));
}

/// The bits of x for split_tf32, which would make zero of the high part of some NaNs.
LLTM_DEVICE uint32_t bits_to_split(float x) {
  return x == x ? __float_as_uint(x) : 0x7fc00000u;
}

/// The sums of 16 rows of weights and 8 rows of the batch. Those of products with a low part are
/// separate where there are three products.
template <bool kThreeProducts>
struct GridSums {
  float of[4] = {};
  float low[kThreeProducts ? 4 : 1] = {};

  LLTM_DEVICE float sum(int i, float of_low) const {
    return kThreeProducts ? fmaf(low[kThreeProducts ? i : 0], of_low, of[i]) : of[i];
  }
  /// An infinity has no low part: where it is an operand, only the products of high parts count.
  LLTM_DEVICE void clear_low_of_infinite() {
#pragma unroll
    for (int i = 0; i < 4 && kThreeProducts; ++i) {
      low[kThreeProducts ? i : 0] = fabsf(of[i]) < INFINITY ? low[kThreeProducts ? i : 0] : 0;
    }
  }
};

/// A granule of 16 rows of weights.
using WeightsOfGranule = uint32_t[8];

LLTM_DEVICE void set_weights(WeightsOfGranule& to, const uint4& of_first, const uint4& of_second) {
  to[0] = of_first.x;
  to[1] = of_second.x;
  to[2] = of_first.y;
  to[3] = of_second.y;
  to[4] = of_first.z;
  to[5] = of_second.z;
  to[6] = of_first.w;
  to[7] = of_second.w;
}

/// Adds the products of a granule.
template <Arithmetic kArithmetic, bool kBackward, bool kThreeProducts>
LLTM_DEVICE void multiply_granule(GridSums<kThreeProducts>& sums,
                                  const WeightsOfGranule& weights,
                                  const uint4& v) {
  const uint32_t first[4] = {weights[0], weights[1], weights[2], weights[3]},
                 second[4] = {weights[4], weights[5], weights[6], weights[7]};
  const uint32_t v_first[2] = {v.x, v.y}, v_second[2] = {v.z, v.w};
  // Sums of high parts leave the tensor core, which truncates, at every granule.
  [[maybe_unused]] float here[4] = {};
  if constexpr (kThreeProducts && !kBackward) {
    multiply_add_f16_in_order(here, first, v_first);
    multiply_add_f16_in_order(sums.low, second, v_first);
    multiply_add_f16_in_order(sums.low, first, v_second);
  } else if constexpr (kThreeProducts) {
    uint32_t high[2][4], low[2][4], v_high[2][2], v_low[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      split_tf32(first[i], high[0][i], low[0][i]);
      split_tf32(second[i], high[1][i], low[1][i]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      split_tf32(v_first[i], v_high[0][i], v_low[0][i]);
      split_tf32(v_second[i], v_high[1][i], v_low[1][i]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      multiply_add_tf32(here, high[i], v_high[i]);
      multiply_add_tf32(sums.low, low[i], v_high[i]);
      multiply_add_tf32(sums.low, high[i], v_low[i]);
    }
  } else if constexpr (kBackward && is_float(kArithmetic)) {
    multiply_add_tf32(sums.of, first, v_first);
    multiply_add_tf32(sums.of, second, v_second);
  } else {
    using Operand =
        std::conditional_t<kArithmetic == Arithmetic::kBFloat16, c10::BFloat16, c10::Half>;
    multiply_add_in_order<Operand>(sums.of, first, v_first);
    multiply_add_in_order<Operand>(sums.of, second, v_second);
  }
  if constexpr (kThreeProducts) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums.of[i] += here[i];
    }
  }
}

/// The weights of a warp: kTiles times 16 rows of kGranules granules, the last kShared of which are
/// in shared memory.
template <int kGranules, int kTiles, int kShared>
class GridWeights {
 public:
  static constexpr int kSharedBytesOfWarp = kShared * kTiles * 2 * kGranuleBytes;

  /// `from` and `shared` are the lane's. `zero` is 0 (wait_for).
  LLTM_DEVICE GridWeights(const uint4* from, uint32_t shared, unsigned zero) : shared_(shared) {
#pragma unroll
    for (int granule = 0; granule < kGranules; ++granule) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint4 first = *from, second = from[32];
        from += 64;
        if (granule < kInRegisters) {
          set_weights(weights_[granule < kInRegisters ? granule : 0][tile], first, second);
        } else {
          const uint32_t to = shared_ + offset(granule, tile);
          store_shared_4(to, {first.x, first.y, first.z, first.w});
          store_shared_4(to + kGranuleBytes, {second.x, second.y, second.z, second.w});
        }
      }
    }
#pragma unroll
    for (int granule = 0; granule < kInRegisters; ++granule) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (uint32_t& word : weights_[granule][tile]) {
          // As wait_for (registers.cuh). Otherwise the compiler would do it in each step.
          asm volatile("xor.b32 %0, %0, %1;\n" : "+r"(word) : "r"(zero));
        }
      }
    }
  }

  LLTM_DEVICE void get(int granule, int tile, WeightsOfGranule& to) const {
    if (granule < kInRegisters) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        to[i] = weights_[granule < kInRegisters ? granule : 0][tile][i];
      }
    } else {
      uint32_t first[4], second[4];
      load_shared_4(first, shared_ + offset(granule, tile));
      load_shared_4(second, shared_ + offset(granule, tile) + kGranuleBytes);
      set_weights(to,
                  {first[0], first[1], first[2], first[3]},
                  {second[0], second[1], second[2], second[3]});
    }
  }

 private:
  static constexpr int kInRegisters = kGranules - kShared;
  static LLTM_DEVICE int offset(int granule, int tile) {
    return ((granule - kInRegisters) * kTiles + tile) * 2 * kGranuleBytes;
  }

  uint32_t weights_[kInRegisters][kTiles][8];
  uint32_t shared_;
};

}  // namespace lltm::cuda
