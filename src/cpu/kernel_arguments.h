// Tensors as arguments of the kernels of kernels/kernels.h.
#pragma once

#include "../cell/descriptor.h"
#include "../dispatch/optional_tensor.h"
#include "kernels/kernels.h"

#include <ATen/core/Tensor.h>

namespace lltm::cpu {

/// The kernels accept any stride between rows, but the elements of a row, the last dimension, must
/// be contiguous.
inline bool has_contiguous_rows(const at::Tensor& tensor) {
  return tensor.size(-1) <= 1 || tensor.stride(-1) == 1;
}
inline at::Tensor with_contiguous_rows(const at::Tensor& tensor) {
  return has_contiguous_rows(tensor) ? tensor : tensor.contiguous();
}

/// `state` is contiguous, or undefined.
template <typename scalar_t>
CellsIn<scalar_t> cells_in(const at::Tensor& state) {
  if (!state.defined() || state.scalar_type() == c10::CppTypeToScalarType<scalar_t>::value) {
    return {.rounded = data_or_null<scalar_t>(state), .exact = nullptr};
  }
  return {.rounded = nullptr, .exact = state.const_data_ptr<accumulate_t<scalar_t>>()};
}
template <typename scalar_t>
CellsOut<scalar_t> cells_out(const at::Tensor& state) {
  if (!state.defined() || state.scalar_type() == c10::CppTypeToScalarType<scalar_t>::value) {
    return {.rounded = mutable_data_or_null<scalar_t>(state), .exact = nullptr};
  }
  return {.rounded = nullptr, .exact = state.mutable_data_ptr<accumulate_t<scalar_t>>()};
}

template <typename scalar_t>
const PointwiseKernels<scalar_t>& pointwise_kernels(const CellDescriptor& cell) {
  return std::get<PointwiseKernels<scalar_t>>(kernels().pointwise[static_cast<size_t>(cell.type)]);
}

template <typename scalar_t>
const ProductKernels<scalar_t>& product_kernels() {
  return std::get<ProductKernels<scalar_t>>(kernels().products);
}

template <typename scalar_t>
const SequenceKernels<scalar_t>& sequence_kernels(const CellDescriptor& cell) {
  return std::get<SequenceKernels<scalar_t>>(kernels().sequence[static_cast<size_t>(cell.type)]);
}

/// The size of the panels of pack_gates(), in elements of the accumulation type.
template <typename scalar_t>
int64_t packed_gates_size(const CellDescriptor& cell, int64_t state_size, int64_t terms) {
  const auto& kernels = sequence_kernels<scalar_t>(cell);
  return kernels.groups(state_size) * kernels.gate_panel_size(terms);
}

}  // namespace lltm::cpu
