// A matrix as the tile kernels read it.
#pragma once

#include "../problem.h"

#include <ATen/core/Tensor.h>
#include <c10/util/MaybeOwned.h>

namespace lltm::cuda {

/// Whether the first element and every row of a matrix start at multiples of 16 bytes.
inline bool starts_at_16_bytes(const at::Tensor& matrix) {
  const auto size = static_cast<int64_t>(matrix.element_size());
  return matrix.stride(1) == 1 && matrix.stride(0) > 0 && matrix.stride(0) * size % 16 == 0 &&
         reinterpret_cast<uintptr_t>(matrix.const_data_ptr()) % 16 == 0;
}

/// Whether every row of input, old_h and both column ranges of weights starts at a multiple of 16
/// bytes, as Hopper's copies need; rows of state_size, too.
inline bool rows_at_16_bytes(const at::Tensor& input,
                             const at::Tensor& weights,
                             const at::Tensor& old_h,
                             int64_t state_size) {
  return starts_at_16_bytes(weights) &&
         state_size * static_cast<int64_t>(weights.element_size()) % 16 == 0 &&
         starts_at_16_bytes(input) && starts_at_16_bytes(old_h);
}

/// A matrix whose rows are contiguous, at any distance of each other; a copy of the tensor where
/// its rows are not.
class Rows {
 public:
  explicit Rows(const at::Tensor& matrix)
      : matrix_(matrix.stride(1) == 1 || matrix.size(1) <= 1
                    ? c10::MaybeOwned<at::Tensor>::borrowed(matrix)
                    : c10::MaybeOwned<at::Tensor>::owned(matrix.contiguous())) {}

  Matrix matrix() const { return {matrix_->const_data_ptr(), matrix_->stride(0)}; }

 private:
  c10::MaybeOwned<at::Tensor> matrix_;
};

}  // namespace lltm::cuda
