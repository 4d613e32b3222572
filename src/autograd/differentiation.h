// What the Autograd kernels check to find out whether, and how, a call is differentiated.
#pragma once

#include "../gradient_index.h"
#include "../optional_tensor.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <array>
#include <optional>
#include <vector>

namespace lltm {

/// Whether the call runs inside a functorch transform (vmap, grad, jvp, ...), where
/// torch::autograd::Function cannot be used. The key is read directly because
/// ATen/functorch/DynamicLayer.h includes a header that PyTorch does not ship.
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

/// Whether one of the tensors has a tangent of forward-mode AD.
template <typename... Tensors>
bool any_has_tangent(const Tensors&... tensors) {
  return (detail::has_tangent(tensors) || ...);
}

/// Which gradients a node's backward() needs, in the order of the operator's results. Context is
/// torch::autograd::AutogradContext, whose header takes seconds to compile. The first five tensors
/// that the node saved are undefined where the input with that gradient is absent;
/// needs_input_grad() does not count these inputs: without a bias, old_h is third.
template <typename Context>
std::array<bool, kGradientCount> wanted_gradients(const Context& ctx,
                                                  const std::vector<at::Tensor>& saved) {
  std::array<bool, kGradientCount> wanted{};
  size_t given = 0;
  for (size_t gradient = 0; gradient < kGradientCount; ++gradient) {
    if (saved[gradient].defined()) {
      wanted[gradient] = ctx.needs_input_grad(given++);
    }
  }
  return wanted;
}

}  // namespace lltm
