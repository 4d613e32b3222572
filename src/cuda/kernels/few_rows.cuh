// Choosing the instance of a kernel for a batch of a few rows, each of which has one.
#pragma once

#include "forward_kernels.h"

#include <type_traits>

namespace lltm::cuda {

/// launch(std::integral_constant<int, rows>), for rows from 1 to kFewRows.
template <int kRows = 1, typename Launch>
cudaError_t launch_for_rows(int64_t rows, const Launch& launch) {
  if constexpr (kRows > kFewRows) {
    return cudaErrorInvalidValue;
  } else {
    return rows == kRows ? launch(std::integral_constant<int, kRows>{})
                         : launch_for_rows<kRows + 1>(rows, launch);
  }
}

}  // namespace lltm::cuda
