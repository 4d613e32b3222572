// Chooses the instance of a kernel for a batch of a few rows: there is one per number of rows, and
// per number of neighbors that a thread takes.
#pragma once

#include "../runtime/dispatch.h"
#include "forward/kernels.h"

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

}  // namespace lltm::cuda
