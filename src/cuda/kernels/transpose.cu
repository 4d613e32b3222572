#include "../ptx/overlap.cuh"
#include "../runtime/launch.cuh"
#include "../tile/elements.h"
#include "transpose.h"

#include <algorithm>

namespace lltm::cuda {
namespace {

constexpr int kThreads = 256, kTile = 64, kRowsAtOnce = kThreads / kTile;

// Each block copies a square tile at a time. Word has the size of an element.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    transpose_kernel(const __grid_constant__ TransposeParams p) {
  // A row takes an odd number of words, so that the elements of a column are in different banks.
  __shared__ Word tile[kTile][kTile + 4 / sizeof(Word)];
  wait_for_previous_kernel();
  const int x = static_cast<int>(threadIdx.x) % kTile, y = static_cast<int>(threadIdx.x) / kTile;
  const int64_t column_tiles = (p.columns + kTile - 1) / kTile;
  const int64_t tiles = column_tiles * ((p.rows + kTile - 1) / kTile);
#pragma unroll 1
  for (int64_t n = blockIdx.x; n < tiles; n += gridDim.x) {
    const int64_t row = n / column_tiles * kTile, column = n % column_tiles * kTile;
    const int rows = at_most(p.rows - row, kTile), columns = at_most(p.columns - column, kTile);
    // In rows of the tile. What follows the zeros lies that many rows before.
    const int zeros = at_most(p.first_zeros - row, kTile);
    const int after = at_most(p.first_zeros + p.zeros - row, kTile);
    const int64_t stride = p.from_strides[0];
    const Word* from =
        static_cast<const Word*>(p.from) + (column + x) * p.from_strides[1] + (row + y) * stride;
    Word loaded[kTile / kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kTile / kRowsAtOnce; ++i) {
      const int y_i = y + i * kRowsAtOnce;
      const bool is_read = x < columns && y_i < rows && (y_i < zeros || y_i >= after);
      loaded[i] = is_read ? from[y_i >= after ? -p.zeros * stride : 0] : Word{0};
      from += kRowsAtOnce * stride;
    }
#pragma unroll
    for (int i = 0; i < kTile / kRowsAtOnce; ++i) {
      tile[y + i * kRowsAtOnce][x] = loaded[i];
    }
    __syncthreads();
    Word* to = static_cast<Word*>(p.to) + (column + y) * p.to_stride + row + x;
#pragma unroll
    for (int i = 0; i < kTile; i += kRowsAtOnce) {
      if (x < rows && y + i < columns) {
        *to = tile[x][y + i];
      }
      to += kRowsAtOnce * p.to_stride;
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t launch_transpose(const TransposeParams& params, cudaStream_t stream) {
  constexpr int64_t kMaxBlocks = 132 * 8;
  const int64_t tiles = ceil_div(params.rows, kTile) * ceil_div(params.columns, kTile);
  const dim3 grid = grid_of(std::clamp<int64_t>(tiles, 1, kMaxBlocks));
  return params.element_size == 2
             ? launch_in_clusters<&transpose_kernel<uint16_t>, kThreads>(params, grid, 1, stream)
             : launch_in_clusters<&transpose_kernel<uint32_t>, kThreads>(params, grid, 1, stream);
}

}  // namespace lltm::cuda
