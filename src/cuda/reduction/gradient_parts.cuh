// Parts of the sums of a tile whose K is split, as the threads that multiply hold them: one float4
// per thread for each eight columns. Another kernel adds them.
#pragma once

#include "../scheduler/gradient_units.h"
#include "../tile/vectors.cuh"

namespace lltm::cuda {

/// Writes this thread's sums of a part; `to` is the place of its first four.
template <int kSums>
__device__ __forceinline__ void write_part(float4* to, const float (&sum)[kSums]) {
#pragma unroll
  for (int i = 0; i < kSums / 4; ++i) {
    __stcg(to + i * kGradientThreads, four_of(sum + i * 4));
  }
}

}  // namespace lltm::cuda
