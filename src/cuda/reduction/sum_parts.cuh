// Adds the parts of d_bias or d_weights, each of which is the sum over a part of the batch.
#pragma once

#include "../ptx/overlap.cuh"
#include "../runtime/launch.cuh"
#include "../tile/vectors.cuh"

#include <cstdint>

namespace lltm::cuda {

/// Contiguous sums.
template <typename Element>
struct SumsInOrder {
  Element* data;

  template <typename Value>
  LLTM_DEVICE void store(int64_t index, Value sum) const {
    data[index] = static_cast<Element>(sum);
  }
};

/// Stores in `result` the sum of the `count` rows of `parts`, added in order. acc_t is a number or
/// float4. The first kThreads threads of all blocks call it.
template <int kThreads, typename acc_t, typename Result>
LLTM_DEVICE void sum_parts(const acc_t* parts, int64_t count, int64_t size, const Result& result) {
  constexpr int kAtOnce = sizeof(acc_t) == 16 ? 4 : 16;
  const int64_t first = int64_t(blockIdx.x) * kThreads + threadIdx.x;
#pragma unroll 1
  for (int64_t column = first; column < size; column += int64_t(gridDim.x) * kThreads) {
    acc_t sum{};
#pragma unroll 1
    for (int64_t begin = 0; begin < count; begin += kAtOnce) {
      acc_t some[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        some[i] = begin + i < count ? parts[(begin + i) * size + column] : acc_t{};
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        add(sum, some[i]);
      }
    }
    result.store(column, sum);
  }
}

template <typename acc_t, typename Result>
struct SumPartsArguments {
  const acc_t* parts;
  int64_t count, size;
  Result result;
};

constexpr int kSumThreads = 256;

template <typename acc_t, typename Result>
__global__ void __launch_bounds__(kSumThreads)
    sum_parts_kernel(const __grid_constant__ SumPartsArguments<acc_t, Result> arguments) {
  wait_for_previous_kernel();
  start_next_kernel();
  sum_parts<kSumThreads>(arguments.parts, arguments.count, arguments.size, arguments.result);
}

template <typename acc_t, typename Result>
cudaError_t launch_sum_parts(
    const acc_t* parts, int64_t count, int64_t size, const Result& result, cudaStream_t stream) {
  return launch_in_clusters<&sum_parts_kernel<acc_t, Result>, kSumThreads>(
      SumPartsArguments<acc_t, Result>{parts, count, size, result},
      grid_of(ceil_div(size, kSumThreads)),
      1,
      stream);
}

}  // namespace lltm::cuda
