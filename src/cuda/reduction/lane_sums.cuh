// Sums over the lanes of a warp.
#pragma once

#include "../ptx/select.cuh"

namespace lltm::cuda {

/// Sums kCount values over the lanes whose numbers differ in the bits kFirst, kFirst / 2, ...,
/// kLast. Each of these lanes gets the sums of its own share of the values, in front: at each bit,
/// a lane passes on the half that it will not keep, the upper one if its bit is clear. This takes
/// less than summing one value after the other. There are at least as many values as lanes.
template <int kFirst, int kLast, int kCount>
LLTM_DEVICE void scatter_sums(float (&values)[kCount], int lane) {
  constexpr int kLanes = kFirst < kLast ? 1 : 2 * kFirst / kLast;
  static_assert(kCount % kLanes == 0);
  int half = kCount / 2;
#pragma unroll
  for (int bit = kFirst; bit >= kLast; bit /= 2) {
    const bool upper = (lane & bit) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float kept = select(upper, values[i + half], values[i]);
      const float sent = select(upper, values[i], values[i + half]);
      values[i] = kept + __shfl_xor_sync(0xffffffff, sent, bit);
    }
    half /= 2;
  }
}

}  // namespace lltm::cuda
