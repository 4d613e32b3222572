// The arrays of a sequence, as its fused kernels read and write them.
#pragma once

#include "../kernels/kernels.h"

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

/// A block of weights, (gates, columns), or some columns of it; `data` points to the first of them.
template <typename scalar_t>
struct WeightColumns {
  const scalar_t* data;
  int64_t stride;  // between rows
  int64_t columns;
};

}  // namespace lltm::cpu
