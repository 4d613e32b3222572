// The operators as a C++ program sees them: the typed API, values, gradients and errors. The
// schemas are frozen by test_compatibility.py.
#include "lltm/lltm.h"
#include "lltm_testing/cell_reference.h"
#include "lltm_testing/devices.h"
#include "version.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace lltm::test {
namespace {

TEST(Library, KnowsItsVersion) {
  EXPECT_STREQ(version(), LLTM_VERSION);
}

TEST(TypedApi, GivesWhatTheBoxedCallGives) {
  const Arguments arguments = random_arguments({5, 4, 3}, at::kFloat);
  const auto [new_h, new_cell, gates] = call_forward(arguments);
  torch::jit::Stack stack{
      arguments.input, arguments.weights, arguments.bias, arguments.old_h, arguments.old_cell};
  c10::Dispatcher::singleton().findSchemaOrThrow("lltm::forward", "").callBoxed(stack);
  ASSERT_EQ(stack.size(), 3u);
  EXPECT_TRUE(at::equal(stack[0].toTensor(), new_h));
  EXPECT_TRUE(at::equal(stack[1].toTensor(), new_cell));
  EXPECT_TRUE(at::equal(stack[2].toTensor(), gates));
}

class Cell : public testing::TestWithParam<Case> {};

TEST_P(Cell, IsTheFormula) {
  const auto [device, dtype, sizes] = GetParam();
  LLTM_SKIP_UNLESS_TESTABLE(device);
  for (const bool with_bias : {true, false}) {
    SCOPED_TRACE(with_bias ? "with bias" : "without bias");
    Arguments arguments = random_arguments(sizes, at::TensorOptions(device).dtype(dtype));
    if (!with_bias) {
      arguments.bias = std::nullopt;
    }
    const auto [new_h, new_cell, gates] = call_forward(arguments);
    const Outputs expected = reference_forward(arguments);
    expect_close(new_h, expected.new_h, "new_h");
    expect_close(new_cell, expected.new_cell, "new_cell");
    expect_close(gates, expected.gates, "gates");
  }
}

constexpr const char* kGradientNames[] = {
    "d_input", "d_weights", "d_bias", "d_old_h", "d_old_cell"};

/// The limit for a gradient, for expect_close(). d_weights and d_bias are sums over the batch: the
/// rounding error of a long sum grows with the square root of the number of its terms.
double limit_of(std::string_view gradient, at::ScalarType dtype, int64_t batch) {
  const bool is_sum = gradient == "d_weights" || gradient == "d_bias";
  const double terms = is_sum ? static_cast<double>(batch) : 0.0;
  return tolerance(dtype) * std::sqrt(std::max(1.0, terms / 4096));
}

std::vector<at::Tensor> leaves(const Arguments& arguments) {
  return {arguments.input, arguments.weights, *arguments.bias, arguments.old_h, arguments.old_cell};
}

Arguments requiring_grad(const Arguments& arguments, const at::TensorOptions& options) {
  Arguments copy = arguments.to(options);
  const auto leaf = [](const at::Tensor& tensor) {
    return tensor.detach().clone().requires_grad_();
  };
  return {leaf(copy.input),
          leaf(copy.weights),
          leaf(*copy.bias),
          leaf(copy.old_h),
          leaf(copy.old_cell)};
}

/// The five gradients of the formula in float64, computed by autograd.
std::vector<at::Tensor> reference_gradients(const Arguments& arguments,
                                            const at::Tensor& grad_h,
                                            const at::Tensor& grad_cell) {
  const at::TensorOptions exact = at::TensorOptions(at::kCPU).dtype(at::kDouble);
  const Arguments with_grad = requiring_grad(arguments, exact);
  const Outputs outputs = reference_forward(with_grad);
  return torch::autograd::grad({outputs.new_h, outputs.new_cell},
                               leaves(with_grad),
                               {grad_h.to(exact), grad_cell.to(exact)});
}

TEST_P(Cell, IsTheDerivativeOfTheFormula) {
  const auto [device, dtype, sizes] = GetParam();
  LLTM_SKIP_UNLESS_TESTABLE(device);
  const at::TensorOptions options = at::TensorOptions(device).dtype(dtype);
  const Arguments arguments = requiring_grad(random_arguments(sizes, options), options);
  const auto [new_h, new_cell, gates] = call_forward(arguments);
  EXPECT_FALSE(gates.requires_grad());
  const at::Tensor grad_h = at::randn_like(new_h, options);
  const at::Tensor grad_cell = at::randn_like(new_cell, options);
  const auto actual =
      torch::autograd::grad({new_h, new_cell}, leaves(arguments), {grad_h, grad_cell});
  const auto expected = reference_gradients(arguments, grad_h, grad_cell);
  for (size_t gradient = 0; gradient < expected.size(); ++gradient) {
    const char* name = kGradientNames[gradient];
    expect_close(actual[gradient], expected[gradient], name, limit_of(name, dtype, sizes.batch));
  }
}

INSTANTIATE_TEST_SUITE_P(Everywhere,
                         Cell,
                         testing::Combine(testing::ValuesIn(kDevices),
                                          testing::ValuesIn(kDtypes),
                                          testing::ValuesIn(kSizes)),
                         case_name);

TEST(OutputMask, LeavesOutWhatIsNotWanted) {
  const Arguments arguments = random_arguments({5, 3, 4}, at::kDouble);
  const auto& [input, weights, bias, old_h, old_cell] = arguments;
  const auto [new_h, new_cell, gates] = call_forward(arguments);
  const at::Tensor grad_h = at::randn_like(new_h), grad_cell = at::randn_like(new_cell);
  const auto expected = reference_gradients(arguments, grad_h, grad_cell);
  for (size_t wanted = 0; wanted < expected.size(); ++wanted) {
    std::array<bool, 5> mask{};
    mask[wanted] = true;
    const auto actual =
        std::apply([](const auto&... result) { return std::array{result...}; },
                   backward(grad_h, grad_cell, new_cell, gates, input, weights, bias, old_h, mask));
    for (size_t gradient = 0; gradient < expected.size(); ++gradient) {
      EXPECT_EQ(actual[gradient].defined(), gradient == wanted) << kGradientNames[gradient];
    }
    expect_close(actual[wanted], expected[wanted], kGradientNames[wanted]);
  }
}

TEST(Errors, NameTheOperatorTheArgumentAndBothShapes) {
  Arguments arguments = random_arguments({2, 32, 128}, at::kFloat);
  arguments.weights = at::zeros({384, 128});
  const std::string message =
      ": expected weights of shape [3*state_size, state_size+input_features] = [384, 160], got "
      "[384, 128]";
  expect_error([&] { call_forward(arguments); }, "lltm::forward" + message);
  expect_error([&] { sequence(arguments.input.unsqueeze(0), arguments.weights); },
               "lltm::sequence" + message);
}

TEST(Errors, AnUndefinedTensorIsNamed) {
  Arguments arguments = random_arguments({2, 3, 4}, at::kFloat);
  arguments.old_h = at::Tensor();
  expect_error([&] { call_forward(arguments); },
               "lltm::forward: expected old_h to be a tensor, got None or an undefined tensor");
}

}  // namespace
}  // namespace lltm::test
