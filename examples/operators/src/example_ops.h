// The operators of this library for C++ programs. They are typed calls through PyTorch's
// dispatcher, so autograd and the tracers treat them exactly as they treat torch.ops.example_ops in
// Python. Each operator's formula, gradient and errors are described in the file with its name.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#define EXAMPLE_OPS_API __attribute__((visibility("default")))

namespace example_ops {

EXAMPLE_OPS_API at::Tensor round_ste(const at::Tensor& x);

EXAMPLE_OPS_API at::Tensor elementwise_mult(const at::Tensor& a, const at::Tensor& b);

EXAMPLE_OPS_API at::Tensor mul_constant(const at::Tensor& x, double constant);

EXAMPLE_OPS_API at::Tensor cube(const at::Tensor& x);

EXAMPLE_OPS_API at::Tensor linear(const at::Tensor& input,
                                  const at::Tensor& weight,
                                  const std::optional<at::Tensor>& bias = std::nullopt);

EXAMPLE_OPS_API at::Tensor conv2d(const at::Tensor& input, const at::Tensor& weight);

EXAMPLE_OPS_API at::Tensor batch_norm2d(const at::Tensor& input, double eps = 1e-3);

EXAMPLE_OPS_API at::Tensor conv2d_batch_norm(const at::Tensor& input,
                                             const at::Tensor& weight,
                                             double eps = 1e-3);

EXAMPLE_OPS_API std::tuple<at::Tensor, at::Tensor, at::Tensor> peephole(
    const at::Tensor& z_x, const at::Tensor& weight_hh, const at::Tensor& peepholes);

}  // namespace example_ops
