// Copies of matrices, in rows that TMA can describe.
#pragma once

#include "../problem.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lltm::cuda {

struct PackParams {
  struct Part {
    Matrix from;
    int64_t rows, columns;
    Matrix to;  // at a multiple of 16 bytes, with a stride of packed_stride(lead + columns) or more
    int lead = 0;  // columns of zeros in front, less than 16 bytes
  };
  static constexpr int kMaxParts = 4;
  Part parts[kMaxParts];
  int count = 0;
  int element_size;  // 2 or 4

  void add(const Part& part) { parts[count++] = part; }
};

/// Copies all parts in one launch, which lets the next kernel start at once. What follows the
/// columns of a packed row is left as it is. Returns the error of the launch.
cudaError_t launch_pack(const PackParams& params, cudaStream_t stream);

}  // namespace lltm::cuda
