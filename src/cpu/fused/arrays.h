// The arrays of a sequence, as its fused kernels read and write them.
#pragma once

#include "../../cell/accumulate.h"

#include <algorithm>
#include <cstdint>

namespace lltm::cpu {

/// A (steps, batch, columns) array whose rows may have any stride, or null.
template <typename scalar_t>
struct StepRows {
  const scalar_t* data;
  int64_t step_stride;
  int64_t row_stride;

  const scalar_t* at(int64_t step, int64_t row) const {
    return data ? data + step * step_stride + row * row_stride : nullptr;
  }
};

/// The features may have any stride, too, but only in the forward.
template <typename scalar_t>
struct SequenceInput {
  StepRows<scalar_t> rows;
  int64_t features;
  int64_t feature_stride;
};

/// The cell state of a batch or its gradient, (batch, state_size), in the accumulation type or else
/// rounded; both are null for zeros.
template <typename scalar_t>
struct CellsIn {
  const scalar_t* rounded;
  const accumulate_t<scalar_t>* exact;

  void read(int64_t row, int64_t state_size, accumulate_t<scalar_t>* to) const {
    if (exact) {
      std::copy_n(exact + row * state_size, state_size, to);
    } else if (rounded) {
      std::copy_n(rounded + row * state_size, state_size, to);
    }
  }
};

/// The same, for results. Both are null if it is not wanted.
template <typename scalar_t>
struct CellsOut {
  scalar_t* rounded;
  accumulate_t<scalar_t>* exact;

  void write(int64_t row, int64_t state_size, const accumulate_t<scalar_t>* from) const {
    if (exact) {
      std::copy_n(from, state_size, exact + row * state_size);
    } else if (rounded) {
      std::copy_n(from, state_size, rounded + row * state_size);
    }
  }
};

/// A block of weights, (gates, columns), or some columns of it; `data` points to the first of them.
template <typename scalar_t>
struct WeightColumns {
  const scalar_t* data;
  int64_t stride;  // between rows
  int64_t columns;
};

}  // namespace lltm::cpu
