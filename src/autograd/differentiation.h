// What the Autograd kernels check to find out whether, and how, a call is differentiated.
#pragma once

#include "../optional_tensor.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <optional>

namespace lltm {

namespace detail {

inline bool requires_grad(const at::Tensor& tensor) {
  return tensor.requires_grad();
}
inline bool requires_grad(const std::optional<at::Tensor>& tensor) {
  return is_given(tensor) && tensor->requires_grad();
}
inline bool has_tangent(const at::Tensor& tensor) {
  return tensor._fw_grad(/*level=*/0).defined();
}
inline bool has_tangent(const std::optional<at::Tensor>& tensor) {
  return is_given(tensor) && has_tangent(*tensor);
}

}  // namespace detail

template <typename... Tensors>
bool any_requires_grad(const Tensors&... tensors) {
  return c10::GradMode::is_enabled() && (detail::requires_grad(tensors) || ...);
}

/// Whether one of the tensors has a tangent of forward-mode AD.
template <typename... Tensors>
bool any_has_tangent(const Tensors&... tensors) {
  return (detail::has_tangent(tensors) || ...);
}

}  // namespace lltm
