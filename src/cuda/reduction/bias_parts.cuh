// Adds the parts of d_bias, each of which is the sum over a part of the batch.
#pragma once

#include <cstdint>

namespace lltm::cuda {

/// Calls write(column, sum) for the columns first, first + step, ... below `size`. The sum is that
/// of `count` rows of `parts`, added in order.
template <typename acc_t, typename Write>
__device__ __forceinline__ void sum_bias_parts(const acc_t* parts,
                                               int64_t count,
                                               int64_t size,
                                               int64_t first,
                                               int64_t step,
                                               const Write& write) {
  constexpr int kAtOnce = 16;
#pragma unroll 1
  for (int64_t column = first; column < size; column += step) {
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
    write(column, sum);
  }
}

}  // namespace lltm::cuda
