// Kernels that process the elements of a matrix one by one.
#pragma once

#include "../problem.h"
#include "../ptx/device_function.h"
#include "../runtime/launch.cuh"

#include <algorithm>
#include <cstdint>

namespace lltm::cuda {

constexpr int kElementThreads = 256;

// Calls function(row, column) for every element, in a grid-stride loop, so that any number of
// elements fits the grid.
template <typename Function>
LLTM_DEVICE void for_each_element(int64_t rows, int64_t columns, const Function& function) {
  const int64_t elements = rows * columns;
  const int64_t step = int64_t(gridDim.x) * kElementThreads;
  // A 64-bit division takes as long as everything else here.
  const bool is_short = elements <= INT32_MAX;
  for (int64_t index = int64_t(blockIdx.x) * kElementThreads + threadIdx.x; index < elements;
       index += step) {
    const int64_t row =
        is_short ? static_cast<uint32_t>(index) / static_cast<uint32_t>(columns) : index / columns;
    function(row, index - row * columns);
  }
}

template <auto kKernel, typename Params>
cudaError_t launch_on_elements(const Params& params, int64_t elements, cudaStream_t stream) {
  constexpr int64_t kMaxBlocks = 1 << 16;
  const int64_t blocks = std::min(ceil_div(elements, kElementThreads), kMaxBlocks);
  return launch_in_clusters<kKernel, kElementThreads>(params, grid_of(blocks), 1, stream);
}

}  // namespace lltm::cuda
