// Chooses the instance of a kernel for a batch of a few rows: there is one per number of rows, and
// per number of neighbors that a thread takes.
#pragma once

#include "../runtime/dispatch.h"
#include "forward/kernels.h"

#include <bit>
#include <cstdint>
#include <iterator>

namespace lltm::cuda {

/// Whether `count` neighbors of a row, of `size` bytes each, can be read at once, of the
/// `h_columns` of h and of x.
template <typename Problem>
bool rows_are_vectors_of(int count, const Problem& p, int64_t h_columns, int size) {
  return h_columns % count == 0 && p.input_features % count == 0 &&
         p.input.starts_at_neighbors(count, size) && p.old_h.starts_at_neighbors(count, size) &&
         p.weights.starts_at_neighbors(count, size) &&
         p.weights_input.starts_at_neighbors(count, size);
}

/// The numbers of rows that there are kernels for.
inline constexpr int kCountsOfFewRows[] = {1, 2, 3, 4, 5, 6, 7, 8};
static_assert(std::size(kCountsOfFewRows) == kFewRows);

/// Of a cell that does not add its sides, to have fewer kernels: their last rows may not exist.
inline constexpr int kPowersOfFewRows[] = {1, 2, 4, 8};

/// Returns launch(count) for the number of rows of the kernel that takes `rows` rows.
template <typename Cell, typename Launch>
cudaError_t dispatch_few_rows(int64_t rows, const Launch& launch) {
  if constexpr (Cell::kAdds) {
    return dispatch<kCountsOfFewRows>(rows, launch);
  } else {
    return dispatch<kPowersOfFewRows>(std::bit_ceil(static_cast<uint64_t>(rows)), launch);
  }
}

}  // namespace lltm::cuda
