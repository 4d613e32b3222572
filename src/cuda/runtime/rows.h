// Matrices and other tensors as the kernels read them.
#pragma once

#include "../../dispatch/optional_tensor.h"
#include "../problem.h"

#include <ATen/core/Tensor.h>
#include <c10/util/MaybeOwned.h>

#include <cstdint>
#include <optional>

namespace lltm::cuda {

/// The rows of a matrix, or of the first of several matrices. Rows without columns, whose stride
/// may be anything, are null and adjacent, so that no alignment excludes them.
inline Matrix rows_of(const at::Tensor& tensor) {
  return tensor.size(-1) == 0 ? Matrix{} : Matrix{tensor.const_data_ptr(), tensor.stride(-2)};
}

/// The same as far as its layout counts, so that a plan serves other addresses, too.
inline Matrix alignment_of(const at::Tensor& tensor) {
  constexpr uintptr_t kLine = 128;
  const Matrix rows = rows_of(tensor);
  return {reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(rows.data) % kLine),
          rows.stride};
}

template <typename scalar_t>
Steps<scalar_t> steps_of(const std::optional<at::Tensor>& tensor) {
  if (!is_given(tensor)) {
    return {};
  }
  const bool has_time = tensor->dim() == 3;
  return {tensor->const_data_ptr<scalar_t>(),
          {has_time ? tensor->stride(0) : 0, tensor->stride(-2), tensor->stride(-1)}};
}

/// Whether neighbors in the last dimension are adjacent.
inline bool has_rows(const at::Tensor& tensor) {
  return tensor.size(-1) <= 1 || tensor.stride(-1) == 1;
}

/// Whether TMA can describe the rows in place (problem.h).
inline bool is_describable(const at::Tensor& tensor) {
  return has_rows(tensor) &&
         is_describable(rows_of(tensor), tensor.size(-1), static_cast<int>(tensor.element_size()));
}

/// The same of the columns of weights that belong to h, and of those that belong to input.
inline bool are_describable_halves(const at::Tensor& weights) {
  return is_describable(weights) &&
         rows_of(weights).starts_at_vectors(static_cast<int>(weights.element_size()),
                                            weights.size(0) / 3);
}

/// A matrix whose rows are contiguous, with any stride between them: the tensor itself or, if its
/// rows are not contiguous, a copy.
class Rows {
 public:
  explicit Rows(const at::Tensor& matrix)
      : matrix_(has_rows(matrix) ? c10::MaybeOwned<at::Tensor>::borrowed(matrix)
                                 : c10::MaybeOwned<at::Tensor>::owned(matrix.contiguous())) {}

  Matrix matrix() const { return rows_of(*matrix_); }

 private:
  c10::MaybeOwned<at::Tensor> matrix_;
};

}  // namespace lltm::cuda
