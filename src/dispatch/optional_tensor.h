// Tensors that may be absent: std::nullopt or undefined.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace lltm {

/// What a struct of references has in the place of a tensor that an operator does not take.
inline const std::optional<at::Tensor> kAbsent;

/// Whether an optional tensor is neither std::nullopt nor undefined.
inline bool is_given(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() && tensor->defined();
}

inline at::Tensor or_undefined(const std::optional<at::Tensor>& tensor) {
  return tensor.value_or(at::Tensor());
}
inline at::Tensor contiguous_or_undefined(const std::optional<at::Tensor>& tensor) {
  return is_given(tensor) ? tensor->contiguous() : at::Tensor();
}

/// The tensor, or std::nullopt if it is undefined.
inline std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

template <typename scalar_t>
const scalar_t* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<scalar_t>() : nullptr;
}
template <typename scalar_t>
const scalar_t* data_or_null(const std::optional<at::Tensor>& tensor) {
  return is_given(tensor) ? tensor->const_data_ptr<scalar_t>() : nullptr;
}
template <typename scalar_t>
scalar_t* mutable_data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<scalar_t>() : nullptr;
}

}  // namespace lltm
