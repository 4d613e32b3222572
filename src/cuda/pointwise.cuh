// What the pointwise kernels share: one thread an element of the state, in a grid-stride loop, so
// that any number of elements fits the grid.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace lltm::cuda {

template <typename scalar_t>
using accumulate_t = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;

constexpr int kThreads = 256;

/// Enough blocks to fill any GPU; the loop takes the rest.
inline unsigned blocks_for(int64_t elements) {
  constexpr int64_t kMaxBlocks = 1 << 16;
  return static_cast<unsigned>(std::min((elements + kThreads - 1) / kThreads, kMaxBlocks));
}

template <typename Body>
__device__ __forceinline__ void for_each_element(int64_t elements, const Body& body) {
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t index = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; index < elements;
       index += step) {
    body(index);
  }
}

}  // namespace lltm::cuda
