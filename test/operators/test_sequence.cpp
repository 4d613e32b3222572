// Whole sequences from C++: the typed API, its defaults, values, gradients and errors.
#include "lltm/lltm.h"
#include "lltm_testing/cell_reference.h"
#include "lltm_testing/devices.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace lltm::test {
namespace {

constexpr int64_t kSteps = 6;

class Sequence : public testing::TestWithParam<Case> {};

/// A random input of a sequence. `arguments` are those of a cell: the initial state and parameters.
at::Tensor random_input(const Arguments& arguments, int64_t steps = kSteps) {
  return at::randn({steps, arguments.input.size(0), arguments.input.size(1)}, at::kDouble)
      .to(arguments.input.options());
}

void check_values(const Case& parameters, int64_t steps) {
  const auto [device, dtype, sizes] = parameters;
  LLTM_SKIP_UNLESS_TESTABLE(device);
  const Arguments arguments = random_arguments(sizes, at::TensorOptions(device).dtype(dtype));
  const at::Tensor input = random_input(arguments, steps);
  const auto [output, h_n, c_n, cells, gates] = sequence(input,
                                                         arguments.weights,
                                                         arguments.bias,
                                                         arguments.old_h,
                                                         arguments.old_cell,
                                                         /*lengths=*/std::nullopt,
                                                         /*reset=*/std::nullopt,
                                                         /*reverse=*/false,
                                                         /*keep=*/true);
  Arguments step = arguments.to(at::TensorOptions(at::kCPU).dtype(at::kDouble));
  for (int64_t t = 0; t < steps; ++t) {
    step.input = input[t];
    const Outputs expected = reference_forward(step);
    expect_close(output[t], expected.new_h, "output");
    expect_close(cells[t], expected.new_cell, "cells");
    expect_close(gates[t], expected.gates, "gates");
    step.old_h = expected.new_h;
    step.old_cell = expected.new_cell;
  }
  expect_close(h_n, step.old_h, "h_n");
  expect_close(c_n, step.old_cell, "c_n");
}

void check_gradients(const Case& parameters, int64_t steps) {
  const auto [device, dtype, sizes] = parameters;
  LLTM_SKIP_UNLESS_TESTABLE(device);
  if (c10::elementSize(dtype) == 2) {
    GTEST_SKIP() << "the tests in Python have the bounds for 16 bits";
  }
  const Arguments arguments = random_arguments(sizes, at::TensorOptions(device).dtype(dtype));
  const at::Tensor input = random_input(arguments, steps);
  const auto leaf = [](const at::Tensor& tensor, const at::TensorOptions& options) {
    return tensor.detach().to(options, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
  };
  const auto leaves = [&](const at::TensorOptions& options) {
    return std::vector<at::Tensor>{leaf(input, options),
                                   leaf(arguments.weights, options),
                                   leaf(*arguments.bias, options),
                                   leaf(arguments.old_h, options),
                                   leaf(arguments.old_cell, options)};
  };
  const auto ours = leaves(input.options());
  const auto results = sequence(ours[0], ours[1], ours[2], ours[3], ours[4]);
  const auto actual =
      torch::autograd::grad({std::get<0>(results).sin().sum() + std::get<2>(results).sum()}, ours);
  EXPECT_EQ(std::get<3>(results).size(0), 0);
  EXPECT_FALSE(std::get<4>(results).requires_grad());

  const auto exact = leaves(at::TensorOptions(at::kCPU).dtype(at::kDouble));
  Arguments step{exact[0], exact[1], exact[2], exact[3], exact[4]};
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (int64_t t = 0; t < steps; ++t) {
    step.input = exact[0][t];
    const Outputs outputs = reference_forward(step);
    loss = loss + outputs.new_h.sin().sum();
    step.old_h = outputs.new_h;
    step.old_cell = outputs.new_cell;
  }
  const auto expected = torch::autograd::grad({loss + step.old_cell.sum()}, exact);
  for (size_t k = 0; k < actual.size(); ++k) {
    expect_close(actual[k], expected[k], "gradient " + std::to_string(k), 1e-4);
  }
}

TEST_P(Sequence, IsALoopOfTheFormula) {
  check_values(GetParam(), kSteps);
  check_values(GetParam(), 1);
}

TEST_P(Sequence, HasTheGradientsOfTheFormula) {
  check_gradients(GetParam(), kSteps);
  check_gradients(GetParam(), 1);
}

INSTANTIATE_TEST_SUITE_P(Everywhere,
                         Sequence,
                         testing::Combine(testing::ValuesIn(kDevices),
                                          testing::ValuesIn(kDtypes),
                                          testing::Values(Sizes{1, 1, 1},
                                                          Sizes{3, 5, 7},
                                                          Sizes{33, 65, 129},
                                                          Sizes{4, 0, 5},
                                                          Sizes{0, 4, 3})),
                         case_name);

TEST(SequenceBackward, LeavesOutWhatIsNotWanted) {
  const Arguments arguments = random_arguments({3, 5, 7}, at::kFloat);
  const at::Tensor input = random_input(arguments);
  const auto [output, h_n, c_n, cells, gates] = sequence(
      input, arguments.weights, std::nullopt, std::nullopt, std::nullopt, {}, {}, false, true);
  const auto [d_input, d_weights, d_bias, d_h0, d_c0] =
      sequence_backward(output,
                        {},
                        {},
                        {},
                        output,
                        cells,
                        gates,
                        input,
                        arguments.weights,
                        {},
                        {},
                        {},
                        {},
                        {},
                        false,
                        {false, true, true, false, true});
  EXPECT_FALSE(d_input.defined());
  EXPECT_EQ(d_weights.sizes(), arguments.weights.sizes());
  EXPECT_EQ(d_bias.sizes(), at::IntArrayRef({21}));
  EXPECT_FALSE(d_h0.defined());
  EXPECT_EQ(d_c0.sizes(), h_n.sizes());
}

/// Expects the gradients of the one result to be those of the other.
void expect_same_gradients(const at::Tensor& result,
                           const at::Tensor& expected,
                           const std::vector<at::Tensor>& leaves) {
  const at::Tensor weight = at::randn_like(result);
  const auto gradients = [&](const at::Tensor& of) {
    return torch::autograd::grad({(of * weight).sum()}, leaves);
  };
  const auto found = gradients(result), wanted = gradients(expected);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::allclose(found[i], wanted[i])) << "gradient " << i;
  }
}

TEST(Lstm, IsThatOfPyTorch) {
  const auto options = at::TensorOptions(at::kDouble);
  const int64_t batch = 3, features = 5, state_size = 7;
  const at::Tensor input = at::randn({kSteps, batch, features}, options);
  const at::Tensor weight_ih = at::randn({4 * state_size, features}, options).requires_grad_();
  const at::Tensor weight_hh = at::randn({4 * state_size, state_size}, options).requires_grad_();
  const at::Tensor bias = at::randn({4 * state_size}, options).requires_grad_();
  const at::Tensor h0 = at::randn({batch, state_size}, options).requires_grad_();
  const at::Tensor c0 = at::randn({batch, state_size}, options).requires_grad_();
  const auto [output, h_n, c_n, cells, gates] = lstm(input, weight_ih, weight_hh, bias, h0, c0);
  const auto [expected, expected_h, expected_c] =
      at::lstm(input,
               {h0.unsqueeze(0), c0.unsqueeze(0)},
               {weight_ih, weight_hh, bias, at::zeros_like(bias)},
               /*has_biases=*/true,
               /*num_layers=*/1,
               /*dropout=*/0.0,
               /*train=*/false,
               /*bidirectional=*/false,
               /*batch_first=*/false);
  EXPECT_TRUE(at::allclose(output, expected));
  EXPECT_TRUE(at::allclose(h_n, expected_h[0]));
  EXPECT_TRUE(at::allclose(c_n, expected_c[0]));
  EXPECT_EQ(gates.sizes(), at::IntArrayRef({0, batch, 4 * state_size}));  // not kept
  expect_same_gradients(output, expected, {weight_ih, weight_hh, bias, h0, c0});
}

TEST(LstmBackward, LeavesOutWhatIsNotRequested) {
  const at::Tensor input = at::randn({kSteps, 3, 5});
  const at::Tensor weight_ih = at::randn({28, 5}), weight_hh = at::randn({28, 7});
  const auto [output, h_n, c_n, cells, gates] =
      lstm(input, weight_ih, weight_hh, {}, {}, {}, {}, {}, false, true);
  const auto [d_input, d_weight_ih, d_weight_hh, d_bias, d_h0, d_c0] =
      lstm_backward(output,
                    {},
                    {},
                    {},
                    output,
                    cells,
                    gates,
                    input,
                    weight_ih,
                    weight_hh,
                    {},
                    {},
                    {},
                    {},
                    {},
                    false,
                    {false, true, false, true, false, true});
  EXPECT_FALSE(d_input.defined());
  EXPECT_EQ(d_weight_ih.sizes(), weight_ih.sizes());
  EXPECT_FALSE(d_weight_hh.defined());
  EXPECT_EQ(d_bias.sizes(), at::IntArrayRef({28}));
  EXPECT_FALSE(d_h0.defined());
  EXPECT_EQ(d_c0.sizes(), h_n.sizes());
}

TEST(Gru, IsThatOfPyTorch) {
  const auto options = at::TensorOptions(at::kDouble);
  const int64_t batch = 3, features = 5, state_size = 7;
  const at::Tensor input = at::randn({kSteps, batch, features}, options);
  const at::Tensor weight_ih = at::randn({3 * state_size, features}, options).requires_grad_();
  const at::Tensor weight_hh = at::randn({3 * state_size, state_size}, options).requires_grad_();
  const at::Tensor bias_ih = at::randn({3 * state_size}, options).requires_grad_();
  const at::Tensor bias_hh = at::randn({3 * state_size}, options).requires_grad_();
  const at::Tensor h0 = at::randn({batch, state_size}, options).requires_grad_();
  const auto [output, h_n, gates] = gru(input, weight_ih, weight_hh, bias_ih, bias_hh, h0);
  const auto [expected, expected_h] = at::gru(input,
                                              h0.unsqueeze(0),
                                              {weight_ih, weight_hh, bias_ih, bias_hh},
                                              /*has_biases=*/true,
                                              /*num_layers=*/1,
                                              /*dropout=*/0.0,
                                              /*train=*/false,
                                              /*bidirectional=*/false,
                                              /*batch_first=*/false);
  EXPECT_TRUE(at::allclose(output, expected));
  EXPECT_TRUE(at::allclose(h_n, expected_h[0]));
  EXPECT_EQ(gates.sizes(), at::IntArrayRef({0, batch, 4 * state_size}));  // not kept
  expect_same_gradients(output, expected, {weight_ih, weight_hh, bias_ih, bias_hh, h0});
}

TEST(GruBackward, LeavesOutWhatIsNotRequested) {
  const at::Tensor input = at::randn({kSteps, 3, 5});
  const at::Tensor weight_ih = at::randn({21, 5}), weight_hh = at::randn({21, 7});
  const auto [output, h_n, gates] =
      gru(input, weight_ih, weight_hh, {}, {}, {}, {}, {}, false, true);
  const auto [d_input, d_weight_ih, d_weight_hh, d_bias_ih, d_bias_hh, d_h0] =
      gru_backward(output,
                   {},
                   output,
                   gates,
                   input,
                   weight_ih,
                   weight_hh,
                   {},
                   {},
                   {},
                   {},
                   {},
                   false,
                   {false, true, false, true, false, true});
  EXPECT_FALSE(d_input.defined());
  EXPECT_EQ(d_weight_ih.sizes(), weight_ih.sizes());
  EXPECT_FALSE(d_weight_hh.defined());
  EXPECT_EQ(d_bias_ih.sizes(), at::IntArrayRef({21}));
  EXPECT_FALSE(d_bias_hh.defined());
  EXPECT_EQ(d_h0.sizes(), h_n.sizes());
}

}  // namespace
}  // namespace lltm::test
