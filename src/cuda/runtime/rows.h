// Matrices as the kernels read them.
#pragma once

#include "../problem.h"

#include <ATen/core/Tensor.h>
#include <c10/util/MaybeOwned.h>

namespace lltm::cuda {

/// Whether TMA can describe these matrices, and rows of state_size elements, in place (problem.h).
inline bool are_describable(const at::Tensor& input,
                            const at::Tensor& weights,
                            const at::Tensor& old_h,
                            int64_t state_size) {
  const auto rows = [](const at::Tensor& matrix) {
    return Matrix{matrix.const_data_ptr(), matrix.stride(0)};
  };
  return input.stride(1) == 1 && weights.stride(1) == 1 && old_h.stride(1) == 1 &&
         are_describable(rows(input),
                         rows(weights),
                         rows(old_h),
                         input.size(1),
                         state_size,
                         static_cast<int>(weights.element_size()));
}

/// A matrix whose rows are contiguous, with any stride between them: the tensor itself or, if its
/// rows are not contiguous, a copy.
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
