// Adds the parts of d_bias, each of which is the sum over a part of the batch.
#pragma once

#include <cstdint>

namespace lltm::cuda {

/// d_bias = the sum of the `count` rows of `parts`, added in order. The first kThreads threads of
/// all blocks call it.
template <int kThreads, typename acc_t, typename Element>
__device__ __forceinline__ void sum_bias_parts(const acc_t* parts,
                                               int64_t count,
                                               int64_t size,
                                               Element* d_bias) {
  constexpr int kAtOnce = 16;
  const int64_t first = int64_t(blockIdx.x) * kThreads + threadIdx.x;
#pragma unroll 1
  for (int64_t column = first; column < size; column += int64_t(gridDim.x) * kThreads) {
    acc_t sum = 0;
#pragma unroll 1
    for (int64_t begin = 0; begin < count; begin += kAtOnce) {
      acc_t some[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        some[i] = begin + i < count ? parts[(begin + i) * size + column] : acc_t(0);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        sum += some[i];
      }
    }
    d_bias[column] = static_cast<Element>(sum);
  }
}

}  // namespace lltm::cuda
