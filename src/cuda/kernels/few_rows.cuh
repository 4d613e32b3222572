// Chooses the instance of a kernel for a batch of a few rows: there is one per number of rows, and
// per number of neighbors that a thread takes.
#pragma once

#include "forward/kernels.h"

#include <type_traits>

namespace lltm::cuda {

/// Whether `count` neighbors of a row, of `size` bytes each, can be read at once, in both halves of
/// [h | x], of which x starts at `input_column` in a row of weights.
template <typename Problem>
bool rows_are_vectors_of(int count, const Problem& p, int64_t input_column, int size) {
  return input_column % count == 0 && p.input_features % count == 0 &&
         p.input.starts_at_neighbors(count, size) && p.old_h.starts_at_neighbors(count, size) &&
         p.weights.starts_at_neighbors(count, size);
}

/// Calls launch(std::integral_constant<int, rows>) for rows from 1 to kFewRows.
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
