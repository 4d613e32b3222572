// What the Autograd kernels check to find out whether, and how, a call is differentiated.
#pragma once

#include "../dispatch/optional_tensor.h"
#include "../operators/arguments.h"
#include "../operators/names.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>

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

/// Whether the operator's results depend on the argument in a differentiable way.
template <typename Op>
bool is_differentiable_in(std::string_view name) {
  // The backward of an LLTM reads only the dtype of c0.
  constexpr bool kReadsC0 = !std::is_same_v<typename Op::Arguments, LltmSequenceBackwardArguments>;
  return is_differentiable(name) && (kReadsC0 || name != "c0");
}

/// For each of the operator's tensors.
template <typename Op>
const auto& are_differentiable() {
  return Op::template by_name<is_differentiable_in<Op>>();
}

template <typename Op>
size_t number_differentiable() {
  const auto& differentiable = are_differentiable<Op>();
  return std::count(differentiable.begin(), differentiable.end(), true);
}

/// Whether any of the differentiable arguments has the property.
template <typename Op, typename Property>
bool any_differentiable(const typename Op::Arguments& arguments, const Property& has_property) {
  const auto& differentiable = are_differentiable<Op>();
  return std::apply(
      [&](const auto&... tensors) {
        size_t i = 0;
        return ((differentiable[i++] && has_property(tensors)) || ...);
      },
      arguments.tensors());
}

template <typename Op>
bool any_requires_grad(const typename Op::Arguments& arguments) {
  return c10::GradMode::is_enabled() && any_differentiable<Op>(arguments, [](const auto& tensor) {
           return detail::requires_grad(tensor);
         });
}

/// Whether one of the arguments has a tangent of forward-mode AD.
template <typename Op>
bool any_has_tangent(const typename Op::Arguments& arguments) {
  return any_differentiable<Op>(arguments,
                                [](const auto& tensor) { return detail::has_tangent(tensor); });
}

/// The differentiable arguments, undefined where absent: the inputs of the operator's node.
template <typename Op>
torch::autograd::variable_list differentiable(const typename Op::Arguments& arguments) {
  torch::autograd::variable_list found;
  any_differentiable<Op>(arguments, [&](const auto& tensor) {
    found.push_back(or_undefined(tensor));
    return false;
  });
  return found;
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

}  // namespace lltm
