// The operators from C++: the typed calls of example_ops.h, with gradients.
#include "example_ops.h"

#include <ATen/core/Formatting.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

namespace {

using at::Tensor;

Tensor row(std::initializer_list<double> values) {
  return at::tensor(at::ArrayRef<double>(values), at::kDouble);
}

// The gradient of the sum of result's elements.
Tensor gradient(const Tensor& result, const Tensor& leaf) {
  leaf.mutable_grad() = Tensor();
  result.sum().backward();
  return leaf.grad();
}

TEST(TypedCalls, Elementwise) {
  const Tensor x = row({0.5, -1.25, 2}).requires_grad_();
  const auto expect = [&](const Tensor& result, const Tensor& value, const Tensor& slope) {
    EXPECT_TRUE(at::equal(result, value)) << result;
    EXPECT_TRUE(at::equal(gradient(result, x), slope)) << x.grad();
  };
  expect(example_ops::round_ste(x), row({1, -1, 2}), row({1, 1, 1}));
  expect(example_ops::elementwise_mult(x, x), row({0.25, 1.5625, 4}), row({1, -2.5, 4}));
  expect(example_ops::mul_constant(x, -2), row({-1, 2.5, -4}), row({-2, -2, -2}));
  expect(example_ops::cube(x), row({0.125, -1.953125, 8}), row({0.75, 4.6875, 12}));
}

TEST(TypedCalls, Layers) {
  const Tensor x = row({0.5, -1.25, 2}).requires_grad_();
  const Tensor weight = row({1, 2, 3}).unsqueeze(0);
  EXPECT_EQ(example_ops::linear(x.unsqueeze(0), weight).item<double>(), 4);
  EXPECT_EQ(example_ops::linear(x.unsqueeze(0), weight, row({0.5})).item<double>(), 4.5);
  EXPECT_TRUE(at::equal(gradient(example_ops::linear(x.unsqueeze(0), weight), x), row({1, 2, 3})));

  const Tensor images = x.view({1, 1, 1, 3});
  const Tensor kernel = row({2}).view({1, 1, 1, 1});
  EXPECT_TRUE(at::equal(example_ops::conv2d(images, kernel).flatten(), x.mul(2)));
  EXPECT_TRUE(example_ops::conv2d_batch_norm(images, kernel, 0.5)
                  .allclose(example_ops::batch_norm2d(images.mul(2), 0.5)));
}

}  // namespace
