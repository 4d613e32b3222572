// lltm::LLTM, the module of torch::nn: the conventions of torch::nn::LSTM, errors, and checkpoints.
// test_cpp_module.py compares its results and gradients, and lltm::LSTM's, with those in Python.
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
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace lltm::test::nn {
namespace {

using State = LLTMImpl::State;
using torch::nn::utils::rnn::pack_padded_sequence;
using torch::nn::utils::rnn::PackedSequence;

constexpr int64_t kSteps = 5;
constexpr int64_t kBatch = 4;
constexpr int64_t kFeatures = 3;
constexpr int64_t kHidden = 6;

/// The arguments of a call, in float64, time first.
struct Call {
  at::Tensor input;
  std::optional<State> hx;
  std::optional<at::Tensor> lengths;
  std::optional<at::Tensor> reset;
};

at::Tensor random(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble);
}

Call random_call(const LLTMOptions& options) {
  const int64_t states = options.num_layers() * (options.bidirectional() ? 2 : 1);
  return {random({kSteps, kBatch, kFeatures}),
          State{random({states, kBatch, kHidden}), random({states, kBatch, kHidden})},
          at::tensor({5, 0, 2, 4}, at::kLong),
          at::rand({kSteps, kBatch}) < 0.3};
}

LLTM random_module(const LLTMOptions& options) {
  LLTM module(options);
  module->to(at::kDouble);
  return module;
}

using ModuleCase =
    std::tuple<int64_t, bool, bool, bool>;  // layers, directions, bias, all arguments

class Module : public testing::TestWithParam<ModuleCase> {
 protected:
  LLTMOptions options() const {
    return LLTMOptions(kFeatures, kHidden)
        .num_layers(std::get<0>(GetParam()))
        .bidirectional(std::get<1>(GetParam()))
        .bias(std::get<2>(GetParam()));
  }

  Call call() const {
    const Call call = random_call(options());
    return std::get<3>(GetParam()) ? call : Call{call.input, {}, {}, {}};
  }
};

TEST_P(Module, TakesASingleSequence) {
  at::manual_seed(4);
  LLTM module = random_module(options());
  const auto [input, hx, lengths, reset] = call();
  const auto row = [](const auto& argument, int64_t dim) {
    return argument ? std::optional(argument->select(dim, 2)) : std::nullopt;
  };
  std::optional<State> hx_of_row;
  if (hx) {
    hx_of_row = {std::get<0>(*hx).select(1, 2), std::get<1>(*hx).select(1, 2)};
  }
  const auto [output, state, states] = module->states(input, hx, lengths, reset);
  const auto [output_of_row, state_of_row, states_of_row] =
      module->states(input.select(1, 2), hx_of_row, row(lengths, 0), row(reset, 1));
  expect_close(output_of_row, output.select(1, 2), "output");
  expect_close(std::get<0>(state_of_row), std::get<0>(state).select(1, 2), "h_n");
  expect_close(std::get<1>(state_of_row), std::get<1>(state).select(1, 2), "c_n");
  expect_close(std::get<0>(states_of_row), std::get<0>(states).select(2, 2), "h");
  expect_close(std::get<1>(states_of_row), std::get<1>(states).select(2, 2), "c");
}

TEST_P(Module, TakesAPackedSequence) {
  at::manual_seed(5);
  LLTM module = random_module(options());
  const auto [input, hx, no_lengths, reset] = call();
  const at::Tensor lengths = at::tensor({2, 5, 1, 5}, at::kLong);
  const PackedSequence packed =
      pack_padded_sequence(input, lengths, /*batch_first=*/false, /*enforce_sorted=*/false);
  const auto [output, state] = module->forward(input, hx, lengths, reset);
  const auto [packed_output, packed_state] = module->forward_with_packed_input(packed, hx, reset);
  const PackedSequence expected =
      pack_padded_sequence(output, lengths, /*batch_first=*/false, /*enforce_sorted=*/false);
  expect_close(packed_output.data(), expected.data(), "output");
  EXPECT_TRUE(packed_output.batch_sizes().equal(packed.batch_sizes()));
  EXPECT_TRUE(packed_output.sorted_indices().equal(packed.sorted_indices()));
  EXPECT_TRUE(packed_output.unsorted_indices().equal(packed.unsorted_indices()));
  expect_close(std::get<0>(packed_state), std::get<0>(state), "h_n");
  expect_close(std::get<1>(packed_state), std::get<1>(state), "c_n");
}

TEST_P(Module, ClonesAreIndependent) {
  LLTM module = random_module(options());
  LLTM copy(std::dynamic_pointer_cast<LLTMImpl>(module->clone()));
  const at::Tensor input = random({kSteps, kBatch, kFeatures});
  const at::Tensor before = std::get<0>(module->forward(input));
  EXPECT_TRUE(std::get<0>(copy->forward(input)).equal(before));
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : copy->parameters()) {
      parameter.zero_();
    }
  }
  EXPECT_TRUE(std::get<0>(module->forward(input)).equal(before));
  EXPECT_EQ(std::get<0>(copy->forward(input)).abs().max().item<double>(), 0);
}

std::string module_case_name(const testing::TestParamInfo<ModuleCase>& info) {
  const auto [layers, bidirectional, bias, all_arguments] = info.param;
  return std::to_string(layers) + "Layers" + (bidirectional ? "BothDirections" : "OneDirection") +
         (bias ? "" : "NoBias") + (all_arguments ? "AllArguments" : "");
}

INSTANTIATE_TEST_SUITE_P(
    Of,
    Module,
    testing::Combine(testing::Values(1, 3), testing::Bool(), testing::Bool(), testing::Bool()),
    module_case_name);

TEST(ModuleParameters, HaveTheNamesAndOrderOfPython) {
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

TEST(ModuleParameters, AreInitializedWithALeak) {
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

TEST(ModuleParameters, MoveToAnotherDtypeAndKeepTheirPlace) {
  LLTM module(3, 4);
  module->to(at::kDouble);
  EXPECT_EQ(std::get<0>(module->forward(random({2, 1, 3}))).scalar_type(), at::kDouble);
  module->to(at::kBFloat16);
  // c_0 in float32 carries a stream's state exactly.
  const State hx{at::zeros({1, 1, 4}, at::kBFloat16), at::zeros({1, 1, 4})};
  const auto [output, state] = module->forward(at::randn({2, 1, 3}, at::kBFloat16), hx);
  EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  EXPECT_EQ(std::get<1>(state).scalar_type(), at::kFloat);
  module->reset_parameters();
  EXPECT_EQ(module->parameters()[0].scalar_type(), at::kBFloat16);
}

TEST(ModuleDropout, ActsBetweenLayersInTrainingOnly) {
  LLTM module(LLTMOptions(3, 4).num_layers(2).dropout(1));
  const at::Tensor input = at::randn({kSteps, kBatch, 3});
  // Without the first layer's output, the second layer runs on zeros: all rows are equal.
  const at::Tensor output = std::get<0>(module->forward(input));
  EXPECT_TRUE(output.select(1, 0).equal(output.select(1, 1)));
  // The states are those before dropout.
  const State states = std::get<2>(module->states(input));
  EXPECT_GT(std::get<0>(states)[0].abs().min().item<double>(), 0);
  module->eval();
  const at::Tensor evaluated = std::get<0>(module->forward(input));
  EXPECT_FALSE(evaluated.select(1, 0).equal(evaluated.select(1, 1)));
}

TEST(ModuleInSequential, TakesItsDefaultArguments) {
  torch::nn::Sequential model(torch::nn::Linear(2, 3), LLTM(3, 4));
  const auto [output, state] =
      model->forward<std::tuple<at::Tensor, State>>(at::randn({kSteps, kBatch, 2}));
  EXPECT_EQ(output.sizes(), (std::vector<int64_t>{kSteps, kBatch, 4}));
  EXPECT_EQ(model->named_parameters().size(), 4);
  EXPECT_TRUE(model->named_parameters().contains("1.weights_l0"));
}

TEST(ModulePrinting, ShowsTheOptionsAsLSTMDoes) {
  std::ostringstream ours, lstm;
  ours << LLTM(LLTMOptions(3, 4).num_layers(2).dropout(0.5).bidirectional(true));
  lstm << torch::nn::LSTM(
      torch::nn::LSTMOptions(3, 4).num_layers(2).dropout(0.5).bidirectional(true));
  EXPECT_EQ(ours.str(),
            "lltm::LLTM(input_size=3, hidden_size=4, num_layers=2, bias=true, batch_first=false, "
            "dropout=0.5, bidirectional=true)");
  EXPECT_EQ(ours.str().substr(ours.str().find('(')), lstm.str().substr(lstm.str().find('(')));
  std::ostringstream with_leak;
  with_leak << LLTM(LLTMOptions(3, 4).leak(0.5));
  EXPECT_EQ(with_leak.str(),
            "lltm::LLTM(input_size=3, hidden_size=4, num_layers=1, bias=true, batch_first=false, "
            "dropout=0, bidirectional=false, leak=0.5)");
}

TEST(ModuleErrors, OfOptions) {
  const std::vector<std::pair<LLTMOptions, std::string>> wrong = {
      {LLTMOptions(0, 4), "input_size must be greater than zero, got 0"},
      {LLTMOptions(3, -4), "hidden_size must be greater than zero, got -4"},
      {LLTMOptions(3, 4).num_layers(0), "num_layers must be greater than zero, got 0"},
      {LLTMOptions(3, 4).dropout(1.5), "dropout should be a number in range [0, 1], got 1.5"},
      {LLTMOptions(3, 4).dropout(-1), "dropout should be a number in range [0, 1], got -1"},
      {LLTMOptions(3, 4).dropout(NAN), "dropout should be a number in range [0, 1], got nan"}};
  for (const auto& [options, message] : wrong) {
    expect_error<c10::ValueError>([&, o = options] { LLTM module(o); }, "LLTM: " + message);
  }
}

TEST(ModuleErrors, DropoutOfOneLayerWarns) {
  struct Recorder : c10::WarningHandler {
    void process(const c10::Warning& warning) override { messages.push_back(warning.msg()); }
    std::vector<std::string> messages;
  } recorder;
  const c10::WarningUtils::WarningHandlerGuard guard(&recorder);
  LLTM quiet(LLTMOptions(3, 4).num_layers(2).dropout(0.5));
  EXPECT_TRUE(recorder.messages.empty());
  LLTM module(LLTMOptions(3, 4).dropout(0.5));
  ASSERT_EQ(recorder.messages.size(), 1);
  EXPECT_EQ(recorder.messages[0],
            "LLTM: dropout acts between layers, so non-zero dropout expects num_layers greater "
            "than 1, but got dropout=0.5 and num_layers=1");
}

TEST(ModuleErrors, OfArguments) {
  LLTM module(LLTMOptions(3, 4).num_layers(2));
  const auto zeros = [](at::IntArrayRef sizes) { return at::zeros(sizes); };
  const auto state = [](at::IntArrayRef sizes) {
    return State{at::zeros(sizes), at::zeros(sizes)};
  };
  const at::Tensor input = zeros({5, 2, 3});
  const at::Tensor no_reset = at::zeros({2, 5}, at::kBool);
  const auto value_error = [&](const at::Tensor& wrong, const std::string& message) {
    expect_error<c10::ValueError>([&] { module->forward(wrong); }, "LLTM: " + message);
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
    expect_error([&] { module->forward(arguments...); }, "LLTM: " + message);
  };
  const std::optional<State> no_state;
  const std::optional<at::Tensor> no_lengths;
  error("input.size(-1) must be equal to input_size. Expected 3, got 4", zeros({5, 2, 4}));
  error("input.size(-1) must be equal to input_size. Expected 3, got 4", zeros({5, 4}));
  error("Expected reset size [5, 2], got [2, 5]", input, no_state, no_lengths, no_reset);
  error("Expected hidden[0] size [2, 2, 4], got [1, 2, 4]", input, state({1, 2, 4}));
  error("Expected hidden[1] size [2, 2, 4], got [2, 2, 3]",
        input,
        State{zeros({2, 2, 4}), zeros({2, 2, 3})});
  error("For batched 3-D input, hx and cx should also be 3-D but got (2-D, 2-D) tensors",
        input,
        state({2, 4}));
  error("For unbatched 2-D input, hx and cx should also be 2-D but got (3-D, 3-D) tensors",
        zeros({5, 3}),
        state({2, 1, 4}));
  error("Expected hidden[0] size [2, 1, 4], got [2, 1, 5]", zeros({5, 3}), state({2, 5}));
  error("expected hx to be the pair (h_0, c_0), got an undefined tensor",
        input,
        State{zeros({2, 2, 4}), {}});
  const std::optional<at::Tensor> undefined = at::Tensor();
  error("expected input to be a tensor, got an undefined tensor", at::Tensor());
  const std::string optional = " to be a tensor or std::nullopt, got an undefined tensor";
  error("expected lengths" + optional, input, no_state, undefined);
  error("expected reset" + optional, input, no_state, no_lengths, undefined);
}

TEST(ModuleErrors, OfPackedInputs) {
  LLTM module(3, 4);
  const auto error = [&](const std::string& message, auto&&... arguments) {
    expect_error([&] { module->forward_with_packed_input(arguments...); }, "LLTM: " + message);
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
  error("Expected hidden[0] size [1, 2, 4], got [1, 3, 4]",
        right,
        State{at::zeros({1, 3, 4}), at::zeros({1, 3, 4})});
  const std::optional<State> no_state;
  error("Expected reset size [2, 2], got [3, 2]", right, no_state, at::zeros({3, 2}, at::kBool));
  error("expected reset to be a tensor or std::nullopt, got an undefined tensor",
        right,
        no_state,
        std::optional(at::Tensor()));
}

// The arguments and results of Python's module in one folder.
template <typename Module, typename Options>
void exchange_checkpoint(const std::filesystem::path& folder, Options options) {
  const auto read = [&](const char* name) {
    std::vector<at::Tensor> tensors;
    torch::load(tensors, (folder / name).string());
    return tensors;
  };
  const std::vector<at::Tensor> given = read("options.pt");
  Module module(options.num_layers(given[0].item<int64_t>())
                    .bidirectional(given[1].item<bool>())
                    .bias(given[2].item<bool>())
                    .batch_first(given[3].item<bool>()));
  module->to(at::kDouble);
  torch::load(module, (folder / "python.pt").string());
  torch::save(module, (folder / "cpp.pt").string());

  const std::vector<at::Tensor> arguments = read("arguments.pt");
  std::vector<at::Tensor> leaves = module->parameters();
  leaves.push_back(arguments[0].detach().requires_grad_());
  Call call{leaves.back(), {}, {}, {}};
  if (arguments.size() > 1) {
    call.hx = State{arguments[1].detach().requires_grad_(), arguments[2].detach().requires_grad_()};
    leaves.insert(leaves.end(), {std::get<0>(*call.hx), std::get<1>(*call.hx)});
    call.lengths = arguments[3];
    call.reset = arguments[4];
  }
  const auto [output, last, states] = module->states(call.input, call.hx, call.lengths, call.reset);
  std::vector<at::Tensor> results = {
      output, std::get<0>(last), std::get<1>(last), std::get<0>(states), std::get<1>(states)};
  const auto gradients = torch::autograd::grad(results, leaves, read("grad_outputs.pt"));
  results.insert(results.end(), gradients.begin(), gradients.end());
  torch::save(results, (folder / "results.pt").string());
}

// test_cpp_module.py runs this test with folders of checkpoints and arguments of calls, by module.
// The results are the outputs, the states after every step, and gradients.
TEST(ModuleCheckpoint, IsExchangedWithPython) {
  const char* folder = std::getenv("LLTM_CHECKPOINTS");
  if (folder == nullptr) {
    GTEST_SKIP() << "needs LLTM_CHECKPOINTS, a folder with Python's checkpoints";
  }
  const std::filesystem::path path(folder);
  for (const auto& entry : std::filesystem::directory_iterator(path / "LLTM")) {
    exchange_checkpoint<LLTM>(entry.path(), LLTMOptions(kFeatures, kHidden));
  }
  for (const auto& entry : std::filesystem::directory_iterator(path / "LSTM")) {
    exchange_checkpoint<LSTM>(entry.path(), LSTMOptions(kFeatures, kHidden));
  }
}

}  // namespace
}  // namespace lltm::test::nn
