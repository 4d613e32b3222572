// What the Autograd kernels check to find out whether, and how, a call is differentiated.
#pragma once

#include "../dispatch/optional_tensor.h"

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

/// The tensor without its tangent.
inline at::Tensor primal_of(const at::Tensor& tensor) {
  return detail::has_tangent(tensor) ? tensor._fw_primal(/*level=*/0) : tensor;
}
inline std::optional<at::Tensor> primal_of(const std::optional<at::Tensor>& tensor) {
  return is_given(tensor) ? std::optional(primal_of(*tensor)) : std::nullopt;
}

/// The tangent, undefined where there is none.
inline at::Tensor tangent_of(const at::Tensor& tensor) {
  return tensor._fw_grad(/*level=*/0);
}
inline at::Tensor tangent_of(const std::optional<at::Tensor>& tensor) {
  return is_given(tensor) ? tangent_of(*tensor) : at::Tensor();
}

inline void set_tangent(const at::Tensor& result, const at::Tensor& tangent) {
  result._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/false);
}

/// Whether one of the tensors has a tangent of forward-mode AD.
template <typename... Tensors>
bool any_has_tangent(const Tensors&... tensors) {
  return (detail::has_tangent(tensors) || ...);
}

}  // namespace lltm
