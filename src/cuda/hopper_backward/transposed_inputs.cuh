// [old_h | input] by columns, for products that read it so.
#pragma once

#include "../kernels/backward_kernels.h"
#include "../ptx/mma.cuh"
#include "../tile/elements.cuh"

namespace lltm::cuda {

constexpr int kTransposedColumns = 32, kTransposedRows = 128;

inline __host__ __device__ int64_t transposed_boxes(const TransposedInputs& p) {
  return (p.columns() + kTransposedColumns - 1) / kTransposedColumns *
         ((p.batch + kTransposedRows - 1) / kTransposedRows);
}

/// Where column c is: in each group of 16 they are dealt so that wgmma leaves a thread the sums of
/// four columns that follow each other.
__device__ __forceinline__ int64_t row_of_transposed_column(int64_t c) {
  return c / 16 * 16 + c / 2 % 2 * 8 + c % 16 / 4 * 2 + c % 2;
}

/// What one of `blocks` blocks does of it: every so manyth box of 128 rows and 32 columns.
template <int kThreads>
__device__ __forceinline__ void transpose_inputs(const TransposedInputs& p,
                                                 int64_t block,
                                                 int64_t blocks) {
  constexpr int kWarps = kThreads / 32;
  __shared__ float box[kTransposedRows][kTransposedColumns + 1];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t row_boxes = (p.batch + kTransposedRows - 1) / kTransposedRows;
  for (; block < transposed_boxes(p); block += blocks) {
    const int64_t first_row = block % row_boxes * kTransposedRows;
    const int64_t first_column = block / row_boxes * kTransposedColumns;
    const int64_t column = first_column + lane;
    const bool of_h = column < p.state_size, inside = column < p.state_size + p.input_features;
    const float* const from =
        of_h ? static_cast<const float*>(p.old_h.data) + column
             : static_cast<const float*>(p.input.data) + (column - p.state_size);
    const int64_t stride = of_h ? p.old_h.stride : p.input.stride;
    const int rows = at_most(p.batch - first_row, kTransposedRows);
#pragma unroll
    for (int row = warp; row < kTransposedRows; row += kWarps) {
      box[row][lane] = inside && row < rows ? from[(first_row + row) * stride] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int c = warp; c < kTransposedColumns; c += kWarps) {
      if (first_column + c < p.columns()) {
        float* const to =
            p.transposed +
            (p.in_order ? first_column + c : row_of_transposed_column(first_column + c)) *
                p.row_stride() +
            first_row;
#pragma unroll
        for (int row = lane; row < kTransposedRows; row += 32) {
          if (row < rows) {
            to[row] = __uint_as_float(round_to_tf32(box[row][c]));
          }
        }
      }
    }
    __syncthreads();
  }
}

}  // namespace lltm::cuda
