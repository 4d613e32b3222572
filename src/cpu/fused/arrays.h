// The arrays of a sequence that kernels read.
#pragma once

#include <cstdint>

namespace lltm::cpu {

/// A (steps, batch, columns) array whose rows may have any stride, or null.
template <typename scalar_t>
struct RowsOfSteps {
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
  RowsOfSteps<scalar_t> rows;
  int64_t features;
  int64_t feature_stride;
};

/// The two blocks of columns of weights, (3*state_size, state_size) and (3*state_size, features).
template <typename scalar_t>
struct Weights {
  const scalar_t* h;
  const scalar_t* input;
  int64_t stride;  // between rows of either
};

}  // namespace lltm::cpu
