// Matrices as the kernels read them.
#pragma once

#include "../problem.h"
#include "tensor_maps.h"

#include <ATen/core/Tensor.h>
#include <c10/util/MaybeOwned.h>

namespace lltm::cuda {

/// Whether TMA can describe input, old_h and both column ranges of weights in place, and contiguous
/// rows of state_size elements: all rows start at multiples of 16 bytes.
inline bool vector_rows(const at::Tensor& input,
                        const at::Tensor& weights,
                        const at::Tensor& old_h,
                        int64_t state_size) {
  const auto size = static_cast<int>(weights.element_size());
  const auto describable = [&](const at::Tensor& matrix) {
    return matrix.stride(1) == 1 &&
           is_describable({matrix.const_data_ptr(), matrix.stride(0)}, matrix.size(1), size);
  };
  return state_size * size % 16 == 0 && describable(weights) && describable(input) &&
         describable(old_h);
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
