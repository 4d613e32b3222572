// Transposing a matrix that many products read along the other dimension.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lltm::cuda {

/// to[column, row] = from[row, column], with rows of zeros put between those of from.
struct TransposeParams {
  int element_size;       // 2 or 4 bytes
  int64_t rows, columns;  // with the rows of zeros
  int64_t first_zeros, zeros;
  const void* from;
  int64_t from_strides[2];  // of rows and columns, any
  void* to;                 // (columns, rows)
  int64_t to_stride;
};

/// Enqueues on `stream` of the current device, and returns the error of the launch.
cudaError_t launch_transpose(const TransposeParams& params, cudaStream_t stream);

}  // namespace lltm::cuda
