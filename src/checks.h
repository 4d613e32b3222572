// The argument checks of the operators, each once. They run before any work, in the CPU, CUDA and
// Meta kernels and before the composite formula; the Autograd and Autocast kernels, which only pass
// tensors on, look for undefined tensors alone.
//
// Every check raises c10::Error, in the caller's terms: which operator, which argument, what was
// expected and what came.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>

namespace lltm {

/// The sizes of a call whose arguments were checked. Size is int64_t in a kernel, c10::SymInt where
/// sizes may be symbolic.
template <typename Size>
struct CellSizes {
  Size batch;
  Size input_features;
  Size state_size;
};

struct ForwardArguments {
  const at::Tensor& input;
  const at::Tensor& weights;
  const std::optional<at::Tensor>& bias;
  const at::Tensor& old_h;
  const at::Tensor& old_cell;
};

struct BackwardArguments {
  const std::optional<at::Tensor>& grad_h;
  const std::optional<at::Tensor>& grad_cell;
  const at::Tensor& new_cell;
  const at::Tensor& gates;
  const at::Tensor& input;
  const at::Tensor& weights;
  const std::optional<at::Tensor>& bias;
  const at::Tensor& old_h;
};

/// A caller's None reaches a plain Tensor argument as an undefined tensor.
void check_defined(const ForwardArguments& arguments);
void check_defined(const BackwardArguments& arguments);

/// Everything: defined, dtype, device, rank and size of every argument.
template <typename Size>
CellSizes<Size> check(const ForwardArguments& arguments);
template <typename Size>
CellSizes<Size> check(const BackwardArguments& arguments);

/// Whether an optional tensor was given: neither std::nullopt nor undefined.
inline bool is_given(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() && tensor->defined();
}

}  // namespace lltm
