// lltm::LLTM, lltm::LSTM and lltm::GRU, modules of torch::nn: its conventions, its own LSTM and GRU
// in float64, errors, and checkpoints. test_cpp_module.py compares results and gradients with those
// in Python.
#include "lltm/nn.h"
#include "lltm_testing/cell_reference.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/serialize.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace lltm::test::nn {
namespace {

using torch::nn::utils::rnn::pack_padded_sequence;
using torch::nn::utils::rnn::PackedSequence;

constexpr int64_t kSteps = 5;
constexpr int64_t kBatch = 4;
constexpr int64_t kFeatures = 3;
constexpr int64_t kHidden = 6;

template <typename Module>
using Implementation = typename Module::ContainedType;
template <typename Module>
using Options = decltype(Implementation<Module>::options);
template <typename Module>
using State = typename Implementation<Module>::State;
template <typename Module>
using InitialState = typename Implementation<Module>::InitialState;

/// A module's name, and what it replaces.
template <typename Module>
struct About;
template <>
struct About<LLTM> {
  static constexpr const char* kName = "LLTM";
};
template <>
struct About<LSTM> {
  static constexpr const char* kName = "LSTM";
  using Torchs = torch::nn::LSTM;
};
template <>
struct About<GRU> {
  static constexpr const char* kName = "GRU";
  using Torchs = torch::nn::GRU;
};

struct Names {
  template <typename Module>
  static std::string GetName(int /*index*/) {
    return About<Module>::kName;
  }
};

template <typename Module>
class Modules : public testing::Test {};
using AllModules = testing::Types<LLTM, LSTM, GRU>;
TYPED_TEST_SUITE(Modules, AllModules, Names);

template <typename Module>
class ModulesOfTorch : public testing::Test {};
using WithACounterpart = testing::Types<LSTM, GRU>;
TYPED_TEST_SUITE(ModulesOfTorch, WithACounterpart, Names);

at::Tensor random(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble);
}

/// The state of h and c, or of a GRU the one that is carried.
template <typename Module>
State<Module> make_state(const at::Tensor& h, const at::Tensor& c) {
  if constexpr (std::is_same_v<State<Module>, at::Tensor>) {
    return c;
  } else {
    return {h, c};
  }
}

std::vector<at::Tensor> tensors_of(const at::Tensor& h) {
  return {h};
}
std::vector<at::Tensor> tensors_of(const std::tuple<at::Tensor, at::Tensor>& state) {
  return {std::get<0>(state), std::get<1>(state)};
}

/// The same row of all tensors.
template <typename Module>
State<Module> select_row(const State<Module>& state, int64_t dim, int64_t row) {
  const auto tensors = tensors_of(state);
  return make_state<Module>(tensors.front().select(dim, row), tensors.back().select(dim, row));
}

template <typename ItsState>
void expect_close_states(const ItsState& actual, const ItsState& expected, const char* what) {
  const auto tensors = tensors_of(actual), others = tensors_of(expected);
  for (size_t k = 0; k < tensors.size(); ++k) {
    expect_close(tensors[k], others[k], what + std::to_string(k));
  }
}

/// The arguments of a call, in float64.
template <typename Module>
struct Call {
  at::Tensor input;
  std::optional<State<Module>> hx;
  std::optional<at::Tensor> lengths;
  std::optional<at::Tensor> reset;

  InitialState<Module> initial() const {
    return hx ? InitialState<Module>(*hx) : InitialState<Module>();
  }
};

/// With all arguments, or with the input alone.
template <typename Module>
Call<Module> random_call(const Options<Module>& options, bool all_arguments) {
  const auto in_order = [&](const at::Tensor& tensor) {
    return options.batch_first() ? tensor.transpose(0, 1) : tensor;
  };
  const at::Tensor input = in_order(random({kSteps, kBatch, kFeatures}));
  if (!all_arguments) {
    return {input, {}, {}, {}};
  }
  const int64_t states = options.num_layers() * (options.bidirectional() ? 2 : 1);
  return {input,
          make_state<Module>(random({states, kBatch, kHidden}), random({states, kBatch, kHidden})),
          at::tensor({5, 0, 2, 4}, at::kLong),
          in_order(at::rand({kSteps, kBatch}) < 0.3)};
}

/// A module in float64.
template <typename Module, typename ItsOptions>
Module seeded(const ItsOptions& options) {
  at::manual_seed(1);
  Module module(options);
  module->to(at::kDouble);
  return module;
}

/// Tests a module with all combinations of these options, and of arguments.
template <typename Module, typename Test>
void for_each_call(const Test& test) {
  for (int k = 0; k < 32; ++k) {
    const auto options = Options<Module>(kFeatures, kHidden)
                             .num_layers((k & 1) != 0 ? 3 : 1)
                             .bidirectional((k & 2) != 0)
                             .bias((k & 4) != 0)
                             .batch_first((k & 8) != 0);
    const bool all_arguments = (k & 16) != 0;
    const auto module = seeded<Module>(options);
    SCOPED_TRACE(c10::str(*module, all_arguments ? " with all arguments" : ""));
    test(module, random_call<Module>(options, all_arguments));
  }
}

TYPED_TEST(Modules, TakeASingleSequence) {
  for_each_call<TypeParam>([](TypeParam module, const Call<TypeParam>& call) {
    const int64_t row = 2, of_batch = module->options.batch_first() ? 0 : 1;
    Call<TypeParam> of_row{call.input.select(of_batch, row), {}, {}, {}};
    if (call.hx) {
      of_row = {of_row.input,
                select_row<TypeParam>(*call.hx, 1, row),
                call.lengths->select(0, row),
                call.reset->select(of_batch, row)};
    }
    const auto [output, last, steps] =
        module->states(call.input, call.initial(), call.lengths, call.reset);
    const auto [output_of_row, last_of_row, steps_of_row] =
        module->states(of_row.input, of_row.initial(), of_row.lengths, of_row.reset);
    expect_close(output_of_row, output.select(of_batch, row), "output");
    expect_close_states(last_of_row, select_row<TypeParam>(last, 1, row), "last state ");
    expect_close_states(steps_of_row, select_row<TypeParam>(steps, 1 + of_batch, row), "states ");
  });
}

TYPED_TEST(Modules, TakeAPackedSequence) {
  for_each_call<TypeParam>([](TypeParam module, const Call<TypeParam>& call) {
    const at::Tensor lengths = at::tensor({2, 5, 1, 5}, at::kLong);
    const auto pack = [&](const at::Tensor& padded) {
      return pack_padded_sequence(
          padded, lengths, module->options.batch_first(), /*enforce_sorted=*/false);
    };
    const PackedSequence packed = pack(call.input);
    const auto [output, last] = module->forward(call.input, call.initial(), lengths, call.reset);
    const auto [packed_output, packed_last] =
        module->forward_with_packed_input(packed, call.initial(), call.reset);
    expect_close(packed_output.data(), pack(output).data(), "output");
    EXPECT_TRUE(packed_output.batch_sizes().equal(packed.batch_sizes()));
    EXPECT_TRUE(packed_output.sorted_indices().equal(packed.sorted_indices()));
    EXPECT_TRUE(packed_output.unsorted_indices().equal(packed.unsorted_indices()));
    expect_close_states(packed_last, last, "last state ");
  });
}

TYPED_TEST(Modules, HaveIndependentClones) {
  for_each_call<TypeParam>([](TypeParam module, const Call<TypeParam>& call) {
    TypeParam copy(std::dynamic_pointer_cast<Implementation<TypeParam>>(module->clone()));
    const at::Tensor before = std::get<0>(module->forward(call.input));
    EXPECT_TRUE(std::get<0>(copy->forward(call.input)).equal(before));
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : copy->parameters()) {
        parameter.zero_();
      }
    }
    EXPECT_TRUE(std::get<0>(module->forward(call.input)).equal(before));
    EXPECT_EQ(std::get<0>(copy->forward(call.input)).abs().max().template item<double>(), 0);
  });
}

TYPED_TEST(Modules, MoveToAnotherDtype) {
  TypeParam module(3, 4);
  module->to(at::kDouble);
  EXPECT_EQ(std::get<0>(module->forward(random({2, 1, 3}))).scalar_type(), at::kDouble);
  module->to(at::kBFloat16);
  // A state in float32 carries that of a stream exactly.
  const auto hx = make_state<TypeParam>(at::zeros({1, 1, 4}, at::kBFloat16), at::zeros({1, 1, 4}));
  const auto [output, last] = module->forward(at::randn({2, 1, 3}, at::kBFloat16), hx);
  EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  EXPECT_EQ(tensors_of(last).back().scalar_type(), at::kFloat);
  module->reset_parameters();
  EXPECT_EQ(module->parameters()[0].scalar_type(), at::kBFloat16);
}

TYPED_TEST(Modules, ApplyDropoutBetweenLayersInTrainingOnly) {
  TypeParam module(Options<TypeParam>(3, 4).num_layers(2).dropout(1));
  const at::Tensor input = at::randn({kSteps, kBatch, 3});
  // Without the first layer's output, the second layer runs on zeros: all rows are equal.
  const at::Tensor output = std::get<0>(module->forward(input));
  EXPECT_TRUE(output.select(1, 0).equal(output.select(1, 1)));
  // The states are those before dropout.
  const at::Tensor h = tensors_of(std::get<2>(module->states(input)))[0];
  EXPECT_GT(h[0].abs().min().item<double>(), 0);
  module->eval();
  const at::Tensor evaluated = std::get<0>(module->forward(input));
  EXPECT_FALSE(evaluated.select(1, 0).equal(evaluated.select(1, 1)));
}

TYPED_TEST(Modules, TakeTheirDefaultArgumentsInSequential) {
  TypeParam module(3, 4);
  torch::nn::Sequential model(torch::nn::Linear(2, 3), module);
  const at::Tensor input = at::randn({kSteps, kBatch, 2});
  const auto [output, last] = model->forward<std::tuple<at::Tensor, State<TypeParam>>>(input);
  EXPECT_EQ(output.sizes(), (std::vector<int64_t>{kSteps, kBatch, 4}));
  const auto names = model->named_parameters().keys();
  ASSERT_EQ(names.size(), 2 + module->all_weights().size());
  EXPECT_EQ(names[2], "1." + module->named_parameters().keys()[0]);
}

TYPED_TEST(Modules, PrintTheirOptions) {
  const auto options = Options<TypeParam>(3, 4).num_layers(2).dropout(0.5).bidirectional(true);
  const std::string name = About<TypeParam>::kName;
  EXPECT_EQ(c10::str(*TypeParam(options)),
            "lltm::" + name +
                "(input_size=3, hidden_size=4, num_layers=2, bias=true, batch_first=false, "
                "dropout=0.5, bidirectional=true)");
}

TYPED_TEST(ModulesOfTorch, HaveItsParametersAfterTheSameSeedAndPrintAsItDoes) {
  using Torchs = typename About<TypeParam>::Torchs;
  for_each_call<TypeParam>([](TypeParam ours, const Call<TypeParam>& /*call*/) {
    const auto torchs = seeded<Torchs>(ours->options);
    ours->flatten_parameters();
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
    EXPECT_EQ("torch::nn" + c10::str(*ours).substr(4), c10::str(*torchs));
  });
}

TYPED_TEST(ModulesOfTorch, TakeAPackedSequenceAsItDoes) {
  using Torchs = typename About<TypeParam>::Torchs;
  for_each_call<TypeParam>([](TypeParam ours, const Call<TypeParam>& call) {
    auto torchs = seeded<Torchs>(ours->options);
    const auto packed = pack_padded_sequence(call.input,
                                             at::tensor({2, 5, 1, 4}, at::kLong),
                                             ours->options.batch_first(),
                                             /*enforce_sorted=*/false);
    const auto [output, last] = ours->forward_with_packed_input(packed, call.initial());
    const auto [expected, expected_last] =
        torchs->forward_with_packed_input(packed, call.initial());
    expect_close(output.data(), expected.data(), "output");
    expect_close_states(last, expected_last, "last state ");
  });
}

TYPED_TEST(ModulesOfTorch, LoadWhatItHasSavedAndTheReverse) {
  using Torchs = typename About<TypeParam>::Torchs;
  for_each_call<TypeParam>([](TypeParam ours, const Call<TypeParam>& call) {
    auto torchs = seeded<Torchs>(ours->options);
    auto returned = seeded<Torchs>(ours->options);
    torchs->reset_parameters();
    std::stringstream from_torch, to_torch;
    torch::save(torchs, from_torch);
    torch::load(ours, from_torch);
    torch::save(ours, to_torch);
    torch::load(returned, to_torch);
    for (const auto& item : torchs->named_parameters()) {
      EXPECT_TRUE(ours->named_parameters()[item.key()].equal(item.value())) << item.key();
      EXPECT_TRUE(returned->named_parameters()[item.key()].equal(item.value())) << item.key();
    }
    const auto [output, last] = ours->forward(call.input, call.initial());
    const auto [expected, expected_last] = torchs->forward(call.input, call.initial());
    expect_close(output, expected, "output");
    expect_close_states(last, expected_last, "last state ");
  });
}

TEST(LSTMModule, HasTwoTensorsForTheGradientsOfItsBiases) {
  auto rnn = seeded<LSTM>(LSTMOptions(kFeatures, kHidden));
  const auto named = rnn->named_parameters();
  const auto output = std::get<0>(rnn->forward(random({kSteps, kBatch, kFeatures})));
  const auto gradients =
      torch::autograd::grad({output.sum()}, {named["bias_ih_l0"], named["bias_hh_l0"]});
  EXPECT_TRUE(at::equal(gradients[0], gradients[1]));
  EXPECT_NE(gradients[0].data_ptr(), gradients[1].data_ptr());
}

TEST(LSTMModule, HasNoProjections) {
  expect_error<c10::NotImplementedError>(
      [] { LSTM module(LSTMOptions(3, 4).proj_size(2)); },
      "LSTM: there are no projections, proj_size must be 0, got 2: keep torch::nn::LSTM");
}

TEST(LLTMModule, HasTheParametersOfPython) {
  LLTM module(LLTMOptions(3, 4).num_layers(2).bidirectional(true));
  using Sizes = std::vector<int64_t>;
  const std::vector<std::pair<std::string, Sizes>> expected = {{"weights_l0", {12, 7}},
                                                               {"bias_l0", {12}},
                                                               {"weights_l0_reverse", {12, 7}},
                                                               {"bias_l0_reverse", {12}},
                                                               {"weights_l1", {12, 12}},
                                                               {"bias_l1", {12}},
                                                               {"weights_l1_reverse", {12, 12}},
                                                               {"bias_l1_reverse", {12}}};
  const auto parameters = module->named_parameters();
  ASSERT_EQ(parameters.size(), expected.size());
  for (size_t k = 0; k < expected.size(); ++k) {
    EXPECT_EQ(parameters[k].key(), expected[k].first);
    EXPECT_EQ(parameters[k].value().sizes(), expected[k].second) << expected[k].first;
    EXPECT_TRUE(parameters[k].value().requires_grad());
    EXPECT_TRUE(module->all_weights()[k].is_same(parameters[k].value()));
  }
  LLTM without_bias(LLTMOptions(3, 4).bias(false));
  EXPECT_EQ(without_bias->named_parameters().keys(), std::vector<std::string>{"weights_l0"});
}

/// The parameters after reset_parameters with this leak, of a module whose options have another.
void expect_initialized(LLTM& module, double leak) {
  const int64_t state_size = module->options.hidden_size();
  const double bound = 1 / std::sqrt(static_cast<double>(state_size));
  for (const auto& item : module->named_parameters()) {
    at::Tensor parameter = item.value().detach().clone();
    if (parameter.dim() == 2) {
      parameter.slice(0, 2 * state_size).slice(1, 0, state_size).diagonal().add_(leak);
    }
    EXPECT_LE(parameter.abs().max().item<double>(), bound + 1e-6) << item.key();
    EXPECT_GT(parameter.abs().max().item<double>(), bound / 2) << item.key();
    EXPECT_TRUE(item.value().requires_grad());
  }
}

TEST(LLTMModule, IsInitializedWithALeak) {
  at::manual_seed(6);
  const auto options = LLTMOptions(3, 4).num_layers(2).bidirectional(true);
  EXPECT_EQ(options.leak(), 2);
  LLTM module(options);
  expect_initialized(module, 2);
  module->reset_parameters(0.5);
  expect_initialized(module, 0.5);
  module->reset_parameters();
  expect_initialized(module, 2);

  LLTM other(LLTMOptions(options).leak(3));
  expect_initialized(other, 3);
  LLTM copy(std::dynamic_pointer_cast<LLTMImpl>(other->clone()));
  copy->reset_parameters();
  expect_initialized(copy, 3);
  copy->reset_parameters(0);
  expect_initialized(copy, 0);
}

TEST(LLTMModule, PrintsAnotherLeak) {
  EXPECT_EQ(c10::str(*LLTM(LLTMOptions(3, 4).leak(0.5))),
            "lltm::LLTM(input_size=3, hidden_size=4, num_layers=1, bias=true, batch_first=false, "
            "dropout=0, bidirectional=false, leak=0.5)");
}

// The errors begin with the module's name.

TYPED_TEST(Modules, RefuseOptions) {
  const auto options = [] { return Options<TypeParam>(3, 4); };
  const std::vector<std::pair<Options<TypeParam>, std::string>> wrong = {
      {Options<TypeParam>(0, 4), "input_size must be greater than zero, got 0"},
      {Options<TypeParam>(3, -4), "hidden_size must be greater than zero, got -4"},
      {options().num_layers(0), "num_layers must be greater than zero, got 0"},
      {options().dropout(1.5), "dropout should be a number in range [0, 1], got 1.5"},
      {options().dropout(-1), "dropout should be a number in range [0, 1], got -1"},
      {options().dropout(NAN), "dropout should be a number in range [0, 1], got nan"}};
  for (const auto& [given, message] : wrong) {
    expect_error<c10::ValueError>([&, o = given] { TypeParam module(o); },
                                  About<TypeParam>::kName + (": " + message));
  }
}

TYPED_TEST(Modules, WarnOfDropoutInOneLayer) {
  struct Recorder : c10::WarningHandler {
    void process(const c10::Warning& warning) override { messages.push_back(warning.msg()); }
    std::vector<std::string> messages;
  } recorder;
  const c10::WarningUtils::WarningHandlerGuard guard(&recorder);
  TypeParam quiet(Options<TypeParam>(3, 4).num_layers(2).dropout(0.5));
  EXPECT_TRUE(recorder.messages.empty());
  TypeParam module(Options<TypeParam>(3, 4).dropout(0.5));
  ASSERT_EQ(recorder.messages.size(), 1);
  EXPECT_EQ(recorder.messages[0],
            std::string(About<TypeParam>::kName) +
                ": dropout acts between layers, so non-zero dropout expects num_layers greater "
                "than 1, but got dropout=0.5 and num_layers=1");
}

TYPED_TEST(Modules, RefuseArguments) {
  const std::string name = About<TypeParam>::kName;
  TypeParam module(Options<TypeParam>(3, 4).num_layers(2));
  const auto zeros = [](at::IntArrayRef sizes) { return at::zeros(sizes); };
  const at::Tensor input = zeros({5, 2, 3});
  const auto value_error = [&](const at::Tensor& wrong, const std::string& message) {
    expect_error<c10::ValueError>([&] { module->forward(wrong); }, name + ": " + message);
  };
  value_error(zeros({3}), "Expected input to be 2D or 3D, got 1D instead");
  value_error(zeros({5, 2, 1, 3}), "Expected input to be 2D or 3D, got 4D instead");
  const std::string mismatch =
      ") does not match weight dtype (torch::kFloat). Convert the input: "
      "input.to(torch::kFloat)";
  value_error(input.to(at::kDouble),
              "input dtype (torch::kDouble" + mismatch +
                  ", or the module: "
                  "module->to(torch::kDouble)");
  value_error(input.to(at::kLong), "input dtype (torch::kLong" + mismatch);

  const auto error = [&](const std::string& message, auto&&... arguments) {
    expect_error([&] { module->forward(arguments...); }, name + ": " + message);
  };
  const InitialState<TypeParam> zero_state{};
  const std::optional<at::Tensor> no_lengths;
  error("input.size(-1) must be equal to input_size. Expected 3, got 4", zeros({5, 2, 4}));
  error("input.size(-1) must be equal to input_size. Expected 3, got 4", zeros({5, 4}));
  error("Expected reset size [5, 2], got [2, 5]",
        input,
        zero_state,
        no_lengths,
        at::zeros({2, 5}, at::kBool));
  const std::optional<at::Tensor> undefined = at::Tensor();
  error("expected input to be a tensor, got an undefined tensor", at::Tensor());
  const std::string optional = " to be a tensor or std::nullopt, got an undefined tensor";
  error("expected lengths" + optional, input, zero_state, undefined);
  error("expected reset" + optional, input, zero_state, no_lengths, undefined);
}

TEST(LSTMModule, RefusesStates) {
  using Pair = State<LSTM>;
  LSTM module(LSTMOptions(3, 4).num_layers(2));
  const at::Tensor input = at::zeros({5, 2, 3});
  const auto pair = [](at::IntArrayRef sizes) { return Pair{at::zeros(sizes), at::zeros(sizes)}; };
  const auto error = [&](const at::Tensor& input, const Pair& hx, const std::string& message) {
    expect_error([&] { module->forward(input, hx); }, "LSTM: " + message);
  };
  error(input, pair({1, 2, 4}), "Expected hidden[0] size [2, 2, 4], got [1, 2, 4]");
  error(input,
        {at::zeros({2, 2, 4}), at::zeros({2, 2, 3})},
        "Expected hidden[1] size [2, 2, 4], got [2, 2, 3]");
  error(input,
        pair({2, 4}),
        "For batched 3-D input, hx and cx should also be 3-D but got (2-D, 2-D) tensors");
  error(input[0],
        pair({2, 1, 4}),
        "For unbatched 2-D input, hx and cx should also be 2-D but got (3-D, 3-D) tensors");
  error(input[0], pair({2, 5}), "Expected hidden[0] size [2, 1, 4], got [2, 1, 5]");
  error(input,
        {at::zeros({2, 2, 4}), {}},
        "expected hx to be the pair (h_0, c_0), got an undefined tensor");
}

TEST(GRUModule, RefusesStates) {
  GRU module(GRUOptions(3, 4).num_layers(2));
  const at::Tensor input = at::zeros({5, 2, 3});
  const auto error =
      [&](const at::Tensor& input, at::IntArrayRef sizes, const std::string& message) {
        expect_error([&] { module->forward(input, at::zeros(sizes)); }, "GRU: " + message);
      };
  error(input, {1, 2, 4}, "Expected hidden size [2, 2, 4], got [1, 2, 4]");
  error(input, {2, 4}, "For batched 3-D input, hx should also be 3-D but got 2-D tensor");
  error(input[0], {2, 1, 4}, "For unbatched 2-D input, hx should also be 2-D but got 3-D tensor");
  error(input[0], {2, 5}, "Expected hidden size [2, 1, 4], got [2, 1, 5]");

  LayersArguments with_c0;
  with_c0.h0 = with_c0.c0 = at::zeros({2, 2, 4});
  expect_error([&] { gru_layers(input, module->all_weights(), with_c0); },
               "GRU: expected c0 to be std::nullopt, because h0 is the only state");
}

TYPED_TEST(Modules, RefusePackedInputs) {
  TypeParam module(3, 4);
  const auto error = [&](const std::string& message, auto&&... arguments) {
    expect_error([&] { module->forward_with_packed_input(arguments...); },
                 About<TypeParam>::kName + (": " + message));
  };
  const auto packed = [](at::IntArrayRef sizes, at::ArrayRef<int64_t> batch_sizes) {
    return PackedSequence(at::zeros(sizes), at::tensor(batch_sizes));
  };
  const PackedSequence right = packed({3, 3}, {2, 1});
  EXPECT_EQ(std::get<0>(module->forward_with_packed_input(right)).data().size(0), 3);
  error("input must have 2 dimensions, got 3", packed({3, 1, 3}, {2, 1}));
  error("Expected batch_sizes of a PackedSequence never to increase, got [1, 2]",
        packed({3, 3}, {1, 2}));
  error("Expected data of a PackedSequence to have 3 rows, the sum of batch_sizes, got 4",
        packed({4, 3}, {2, 1}));
  error("input.size(-1) must be equal to input_size. Expected 3, got 2", packed({3, 2}, {2, 1}));
  const bool one_state = std::is_same_v<State<TypeParam>, at::Tensor>;
  error(std::string(one_state ? "Expected hidden" : "Expected hidden[0]") +
            " size [1, 2, 4], got [1, 3, 4]",
        right,
        make_state<TypeParam>(at::zeros({1, 3, 4}), at::zeros({1, 3, 4})));
  const InitialState<TypeParam> zero_state{};
  error("Expected reset size [2, 2], got [3, 2]", right, zero_state, at::zeros({3, 2}, at::kBool));
  error("expected reset to be a tensor or std::nullopt, got an undefined tensor",
        right,
        zero_state,
        std::optional(at::Tensor()));
}

// The arguments and results of Python's module in one folder.
template <typename Module>
void exchange_checkpoint(const std::filesystem::path& folder) {
  const auto read = [&](const char* name) {
    std::vector<at::Tensor> tensors;
    torch::load(tensors, (folder / name).string());
    return tensors;
  };
  const std::vector<at::Tensor> given = read("options.pt");
  Module module(Options<Module>(kFeatures, kHidden)
                    .num_layers(given[0].item<int64_t>())
                    .bidirectional(given[1].item<bool>())
                    .bias(given[2].item<bool>())
                    .batch_first(given[3].item<bool>()));
  module->to(at::kDouble);
  torch::load(module, (folder / "python.pt").string());
  torch::save(module, (folder / "cpp.pt").string());

  // The input alone, or with the tensors of the state, lengths and reset.
  const std::vector<at::Tensor> arguments = read("arguments.pt");
  std::vector<at::Tensor> leaves = module->parameters();
  leaves.push_back(arguments[0].detach().requires_grad_());
  Call<Module> call{leaves.back(), {}, {}, {}};
  if (arguments.size() > 1) {
    call.hx = make_state<Module>(arguments[1].detach().requires_grad_(),
                                 arguments.end()[-3].detach().requires_grad_());
    const auto states = tensors_of(*call.hx);
    leaves.insert(leaves.end(), states.begin(), states.end());
    call.lengths = arguments.end()[-2];
    call.reset = arguments.end()[-1];
  }
  const auto [output, last, steps] =
      module->states(call.input, call.initial(), call.lengths, call.reset);
  std::vector<at::Tensor> results = {output};
  for (const auto& state : {last, steps}) {
    const auto tensors = tensors_of(state);
    results.insert(results.end(), tensors.begin(), tensors.end());
  }
  const auto gradients = torch::autograd::grad(results, leaves, read("grad_outputs.pt"));
  results.insert(results.end(), gradients.begin(), gradients.end());
  torch::save(results, (folder / "results.pt").string());
}

// test_cpp_module.py runs this test with folders of checkpoints and arguments of calls, by module.
// The results are the outputs, the states after every step, and gradients.
TYPED_TEST(Modules, ExchangeCheckpointsWithPython) {
  const char* folder = std::getenv("LLTM_CHECKPOINTS");
  if (folder == nullptr) {
    GTEST_SKIP() << "needs LLTM_CHECKPOINTS, a folder with Python's checkpoints";
  }
  const auto of_module = std::filesystem::path(folder) / About<TypeParam>::kName;
  for (const auto& entry : std::filesystem::directory_iterator(of_module)) {
    exchange_checkpoint<TypeParam>(entry.path());
  }
}

}  // namespace
}  // namespace lltm::test::nn
