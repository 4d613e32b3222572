// lltm::LSTM, the module of torch::nn, beside torch::nn::LSTM in float64. What it shares with
// lltm::LLTM is in test_module.cpp, and results and gradients in test_cpp_module.py.
#include "lltm/nn.h"
#include "lltm_testing/cell_reference.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/modules/rnn.h>
#include <torch/serialize.h>

#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

namespace lltm::test::lstm_module {
namespace {

using State = LSTMImpl::State;
using torch::nn::utils::rnn::pack_padded_sequence;

constexpr int64_t kSteps = 6;
constexpr int64_t kBatch = 4;
constexpr int64_t kFeatures = 3;
constexpr int64_t kHidden = 5;

at::Tensor random(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble);
}

/// One of each after the same seed, in float64.
template <typename Module>
Module seeded(const LSTMOptions& options) {
  at::manual_seed(1);
  Module module(options);
  module->to(at::kDouble);
  return module;
}

using LSTMCase = std::tuple<int64_t, bool, bool, bool>;  // layers, directions, bias, batch_first

class LSTMModule : public testing::TestWithParam<LSTMCase> {
 protected:
  LSTMOptions options() const {
    const auto [layers, bidirectional, bias, batch_first] = GetParam();
    return LSTMOptions(kFeatures, kHidden)
        .num_layers(layers)
        .bidirectional(bidirectional)
        .bias(bias)
        .batch_first(batch_first);
  }

  State random_state() const {
    const int64_t states = options().num_layers() * (options().bidirectional() ? 2 : 1);
    return {random({states, kBatch, kHidden}), random({states, kBatch, kHidden})};
  }

  at::Tensor random_input() const {
    return options().batch_first() ? random({kBatch, kSteps, kFeatures})
                                   : random({kSteps, kBatch, kFeatures});
  }
};

TEST_P(LSTMModule, HasTheParametersOfTorchAfterTheSameSeed) {
  const auto ours = seeded<LSTM>(options());
  const auto torchs = seeded<torch::nn::LSTM>(options());
  const auto parameters = ours->named_parameters();
  const auto expected = torchs->named_parameters();
  EXPECT_EQ(parameters.keys(), expected.keys());
  for (const auto& item : expected) {
    EXPECT_TRUE(parameters[item.key()].equal(item.value())) << item.key();
    EXPECT_TRUE(parameters[item.key()].requires_grad()) << item.key();
  }
  ASSERT_EQ(ours->all_weights().size(), torchs->all_weights().size());
  for (size_t k = 0; k < ours->all_weights().size(); ++k) {
    EXPECT_TRUE(ours->all_weights()[k].equal(torchs->all_weights()[k])) << k;
  }
}

TEST_P(LSTMModule, TakesAPackedSequenceAsTorchDoes) {
  auto ours = seeded<LSTM>(options());
  auto torchs = seeded<torch::nn::LSTM>(options());
  const at::Tensor lengths = at::tensor({2, 6, 1, 5}, at::kLong);
  const auto packed = pack_padded_sequence(
      random_input(), lengths, options().batch_first(), /*enforce_sorted=*/false);
  const State hx = random_state();
  const auto [output, state] = ours->forward_with_packed_input(packed, hx);
  const auto [expected, expected_state] = torchs->forward_with_packed_input(packed, hx);
  expect_close(output.data(), expected.data(), "output");
  expect_close(std::get<0>(state), std::get<0>(expected_state), "h_n");
  expect_close(std::get<1>(state), std::get<1>(expected_state), "c_n");
}

TEST_P(LSTMModule, LoadsWhatTorchHasSavedAndTheReverse) {
  auto torchs = seeded<torch::nn::LSTM>(options());
  auto ours = LSTM(options());
  auto returned = torch::nn::LSTM(options());
  ours->to(at::kDouble);
  returned->to(at::kDouble);
  std::stringstream from_torch, to_torch;
  torch::save(torchs, from_torch);
  torch::load(ours, from_torch);
  torch::save(ours, to_torch);
  torch::load(returned, to_torch);
  for (const auto& item : torchs->named_parameters()) {
    EXPECT_TRUE(ours->named_parameters()[item.key()].equal(item.value())) << item.key();
    EXPECT_TRUE(returned->named_parameters()[item.key()].equal(item.value())) << item.key();
  }
  const at::Tensor input = random_input();
  expect_close(std::get<0>(ours->forward(input)), std::get<0>(torchs->forward(input)), "output");
}

std::string lstm_case_name(const testing::TestParamInfo<LSTMCase>& info) {
  const auto [layers, bidirectional, bias, batch_first] = info.param;
  return std::to_string(layers) + "Layers" + (bidirectional ? "BothDirections" : "OneDirection") +
         (bias ? "" : "NoBias") + (batch_first ? "BatchFirst" : "");
}

INSTANTIATE_TEST_SUITE_P(
    Of,
    LSTMModule,
    testing::Combine(testing::Values(1, 2), testing::Bool(), testing::Bool(), testing::Bool()),
    lstm_case_name);

TEST(LSTMModuleGradients, OfTwoBiasesAreTwoTensors) {
  auto rnn = seeded<LSTM>(LSTMOptions(kFeatures, kHidden));
  const auto named = rnn->named_parameters();
  const auto output = std::get<0>(rnn->forward(random({kSteps, kBatch, kFeatures})));
  const auto gradients =
      torch::autograd::grad({output.sum()}, {named["bias_ih_l0"], named["bias_hh_l0"]});
  EXPECT_TRUE(at::equal(gradients[0], gradients[1]));
  EXPECT_NE(gradients[0].data_ptr(), gradients[1].data_ptr());
}

TEST(LSTMModuleClones, AreIndependent) {
  auto module = seeded<LSTM>(LSTMOptions(3, 4));
  LSTM copy(std::dynamic_pointer_cast<LSTMImpl>(module->clone()));
  const at::Tensor input = random({5, 2, 3});
  const at::Tensor before = std::get<0>(module->forward(input));
  EXPECT_TRUE(std::get<0>(copy->forward(input)).equal(before));
  copy->reset_parameters();
  EXPECT_FALSE(std::get<0>(copy->forward(input)).equal(before));
  EXPECT_TRUE(std::get<0>(module->forward(input)).equal(before));
}

TEST(LSTMModulePrinting, IsThatOfTorch) {
  const auto options = LSTMOptions(3, 4).num_layers(2).dropout(0.5).bidirectional(true);
  std::ostringstream ours, torchs;
  ours << LSTM(options);
  torchs << torch::nn::LSTM(options);
  EXPECT_EQ("torch::nn" + ours.str().substr(4), torchs.str());
}

TEST(LSTMModuleErrors, NameTheModule) {
  expect_error<c10::NotImplementedError>(
      [] { LSTM module(LSTMOptions(3, 4).proj_size(2)); },
      "LSTM: there are no projections, proj_size must be 0, got 2: keep torch::nn::LSTM");
  expect_error<c10::ValueError>([] { LSTM module(LSTMOptions(0, 4)); },
                                "LSTM: input_size must be greater than zero, got 0");
  LSTM module(3, 4);
  expect_error([&] { module->forward(at::zeros({5, 2, 4})); },
               "LSTM: input.size(-1) must be equal to input_size. Expected 3, got 4");
}

}  // namespace
}  // namespace lltm::test::lstm_module
