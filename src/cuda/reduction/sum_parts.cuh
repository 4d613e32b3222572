// Adds the parts of d_bias or d_weights, each of which is the sum over a part of the batch.
#pragma once

#include "../ptx/overlap.cuh"
#include "../runtime/launch.cuh"
#include "../tile/vectors.cuh"

#include <cstdint>

namespace lltm::cuda {

/// result = the sum of the `count` rows of `parts`, added in order. acc_t is a number or float4.
/// The first kThreads threads of all blocks call it.
template <int kThreads, typename acc_t, typename Element>
LLTM_DEVICE void sum_parts(const acc_t* parts, int64_t count, int64_t size, Element* result) {
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
    result[column] = static_cast<Element>(sum);
  }
}

template <typename acc_t, typename Element>
struct SumPartsArguments {
  const acc_t* parts;
  int64_t count, size;
  Element* result;
};

constexpr int kSumThreads = 256;

template <typename acc_t, typename Element>
__global__ void __launch_bounds__(kSumThreads)
    sum_parts_kernel(const __grid_constant__ SumPartsArguments<acc_t, Element> arguments) {
  wait_for_previous_kernel();
  start_next_kernel();
  sum_parts<kSumThreads>(arguments.parts, arguments.count, arguments.size, arguments.result);
}

template <typename acc_t, typename Element>
cudaError_t launch_sum_parts(
    const acc_t* parts, int64_t count, int64_t size, Element* result, cudaStream_t stream) {
  return launch_in_clusters<&sum_parts_kernel<acc_t, Element>, kSumThreads>(
      SumPartsArguments<acc_t, Element>{parts, count, size, result},
      grid_of(ceil_div(size, kSumThreads)),
      1,
      stream);
}

}  // namespace lltm::cuda
