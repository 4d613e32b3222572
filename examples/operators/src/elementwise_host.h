// The host function of the elementwise operators: everything around the loop.
#pragma once

#include "elementwise.h"

#include <ATen/core/Tensor.h>

namespace example_ops {

/// Applies the function to all elements of a tensor, or of two tensors of the same shape, on the
/// CPU or on a GPU. The caller checks the arguments. Arbitrary strides are supported; the result is
/// contiguous.
at::Tensor elementwise(const ScalarFunction& function,
                       const at::Tensor& a,
                       const at::Tensor& b = {});

/// The shape and dtype of elementwise()'s result, for Meta kernels.
at::Tensor elementwise_meta(const at::Tensor& a);

}  // namespace example_ops
