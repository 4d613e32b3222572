// What lltm::backward does alike on every device: allocate what is wanted, and form the products
// once a kernel has written d_gates.
#pragma once

#include "checks.h"
#include "gradient_index.h"

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <array>
#include <optional>

namespace lltm {

/// The gradients under way; one that is not wanted is undefined.
struct CellGradients {
  at::Tensor input;
  at::Tensor weights;
  at::Tensor bias;
  at::Tensor old_h;
  at::Tensor old_cell;
  at::Tensor gates;  // dz, which every gradient but old_cell's is made of

  bool any_wanted() const {
    return input.defined() || weights.defined() || bias.defined() || old_h.defined() ||
           old_cell.defined();
  }

  OptionalGradients results() const {
    return {if_defined(input),
            if_defined(weights),
            if_defined(bias),
            if_defined(old_h),
            if_defined(old_cell)};
  }
};

/// Tensors by `empty`, of a shape, for the gradients that output_mask asks for, and for those of
/// the gates where one of these is made of them, unless the caller does without.
CellGradients empty_gradients(const CellSizes<int64_t>& sizes,
                              c10::function_ref<at::Tensor(at::IntArrayRef)> empty,
                              const std::array<bool, kGradientCount>& output_mask,
                              bool with_gates = true);

/// From gradients.gates: the gradients of input, weights, bias and old_h that are wanted. The sums
/// over an empty batch are zero.
void finish_gradients(const CellGradients& gradients,
                      const at::Tensor& input,
                      const at::Tensor& weights,
                      const at::Tensor& old_h);

inline at::Tensor contiguous_or_undefined(const std::optional<at::Tensor>& tensor) {
  return is_given(tensor) ? tensor->contiguous() : at::Tensor();
}

template <typename scalar_t>
const scalar_t* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<scalar_t>() : nullptr;
}

template <typename scalar_t>
scalar_t* mutable_data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<scalar_t>() : nullptr;
}

}  // namespace lltm
