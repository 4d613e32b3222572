// What asks the Autograd kernels for a derivative.
#pragma once

#include "../checks.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace lltm {

/// Inside vmap, grad, jvp and their like. torch::autograd::Function refuses to run there. The key
/// is read directly because ATen/functorch/DynamicLayer.h needs a header that PyTorch does not
/// ship.
inline bool below_functorch() {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerBackMode);
}

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

/// Whether forward-mode AD is under way.
template <typename... Tensors>
bool any_has_tangent(const Tensors&... tensors) {
  return (detail::has_tangent(tensors) || ...);
}

}  // namespace lltm
