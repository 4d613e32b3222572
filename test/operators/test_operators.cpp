// The operators as a C++ program sees them: the typed API, values and errors. The schemas are
// frozen by test_compatibility.py.
#include "lltm/lltm.h"
#include "lltm_testing/cell_reference.h"
#include "lltm_testing/devices.h"
#include "version.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

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

class Forward : public testing::TestWithParam<Case> {};

TEST_P(Forward, IsTheFormula) {
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

INSTANTIATE_TEST_SUITE_P(Everywhere,
                         Forward,
                         testing::Combine(testing::ValuesIn(kDevices),
                                          testing::ValuesIn(kDtypes),
                                          testing::ValuesIn(kSizes)),
                         case_name);

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
