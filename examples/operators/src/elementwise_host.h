// What the elementwise operators call: everything around the loop.
#pragma once

#include "elementwise.h"

#include <ATen/core/Tensor.h>

namespace example_ops {

/// The function over all elements of one tensor, or of two tensors of one shape, on the CPU or on a
/// GPU. The operator has checked its arguments. Any strides are right; the result is contiguous.
at::Tensor elementwise(const ScalarFunction& function,
                       const at::Tensor& a,
                       const at::Tensor& b = {});

/// What elementwise() returns, for a Meta kernel: the shape, and no computation.
at::Tensor elementwise_meta(const at::Tensor& a);

}  // namespace example_ops
