// lltm::LSTM, lltm::GRU and lltm::LLTM, modules of torch::nn: layers of LSTM, GRU or LLTM cells
// over whole sequences.
//
// lltm::LSTM and lltm::LLTM replace torch::nn::LSTM, and lltm::GRU replaces torch::nn::GRU, as
// the modules in Python do. Header-only: it includes PyTorch's C++ frontend, which lltm/lltm.h does
// not need.
//
//   lltm::LSTM rnn(lltm::LSTMOptions(32, 128).num_layers(2).bidirectional(true));
//   auto [output, state] = rnn->forward(torch::randn({50, 16, 32}));  // steps, batch, features
//   auto [h_n, c_n] = state;
//
// The parameters have the names, shapes and order of those in Python, so a checkpoint of one can be
// loaded into the other. lltm/recurrent.h describes the arguments and results of a call.
#pragma once

#include <lltm/lltm.h>
#include <lltm/recurrent.h>

#include <ATen/core/grad_mode.h>
#include <torch/nn/options/rnn.h>
#include <torch/nn/pimpl.h>

#include <optional>
#include <ostream>
#include <vector>

namespace lltm {

/// The options of LLTM: those of torch::nn::LSTM, without projections, and the leak.
///
///   LLTMOptions(32, 128).num_layers(2).dropout(0.1).bidirectional(true)
struct LLTMOptions {
  LLTMOptions(int64_t input_size, int64_t hidden_size)
      : input_size_(input_size), hidden_size_(hidden_size) {}

  /// The number of features of the input, I.
  TORCH_ARG(int64_t, input_size);
  /// The number of features of the state, H.
  TORCH_ARG(int64_t, hidden_size);
  /// The number of layers, L. Each layer after the first takes the outputs of the previous one.
  TORCH_ARG(int64_t, num_layers) = 1;
  /// Whether the layers have biases.
  TORCH_ARG(bool, bias) = true;
  /// Whether input, output and reset have the batch before the steps. Does not apply to the states.
  TORCH_ARG(bool, batch_first) = false;
  /// During training, the probability of zeroing an element of the output of each layer but the
  /// last.
  TORCH_ARG(double, dropout) = 0.0;
  /// Whether a second direction runs each sequence from its end. D is then 2, otherwise 1.
  TORCH_ARG(bool, bidirectional) = false;
  /// What reset_parameters() subtracts from the weight of each h in the candidate of its own cell.
  TORCH_ARG(double, leak) = 2.0;
};

/// Layers of LLTM cells over whole sequences. Use it through its holder, LLTM.
///
/// The parameters, initialized by reset_parameters(), for layer k and, with the suffix `_reverse`,
/// its second direction:
///   weights_l[k]  (3H, H + I) for the first layer, (3H, H + D * H) for the others. Rows in the
///                 order input gate, output gate, candidate; columns in the order h, x
///   bias_l[k]     (3H); absent without bias
///
/// There is no forget gate, so |c| can grow with the number of steps: reset the state where a new
/// sequence begins.
class LLTM_API LLTMImpl : public RecurrentImpl<LLTMImpl, LLTMOptions> {
 public:
  LLTMImpl(int64_t input_size, int64_t hidden_size)
      : LLTMImpl(LLTMOptions(input_size, hidden_size)) {}

  /// @throws c10::ValueError if an option is out of range
  explicit LLTMImpl(const LLTMOptions& options_) : RecurrentImpl(options_) { reset(); }

  /// Reinitializes the parameters uniformly in +-1/sqrt(hidden_size), and subtracts the leak.
  ///
  /// @param leak  subtracted from the weight of each h in the candidate of its own cell; by default
  ///              that of the options. A positive cell is then pulled down and a negative one up,
  ///              in place of a forget gate. Use 0 where nothing should be forgotten
  void reset_parameters(std::optional<double> leak = std::nullopt) {
    RecurrentImpl::reset_parameters();
    const at::NoGradGuard no_grad;
    const int64_t state_size = options.hidden_size();
    for (const Tensor& parameter : all_weights()) {
      if (parameter.dim() == 1) {
        continue;  // a bias
      }
      parameter.slice(/*dim=*/0, /*start=*/2 * state_size)
          .slice(/*dim=*/1, /*start=*/0, /*end=*/state_size)
          .diagonal()
          .sub_(leak.value_or(options.leak()));
    }
  }

  /// Prints the options: `lltm::LLTM(input_size=32, hidden_size=128, ...)`.
  void pretty_print(std::ostream& stream) const override {
    print_options(stream);
    if (options.leak() != LLTMOptions(1, 1).leak()) {
      stream << ", leak=" << options.leak();
    }
    stream << ")";
  }

 private:
  friend RecurrentImpl;

  static constexpr const char* kName = "LLTM";
  static constexpr int64_t kGates = 3;
  static constexpr auto kLayers = lltm_layers;

  NamedShapes parameter_shapes(int64_t features) const {
    const int64_t rows = kGates * options.hidden_size();
    NamedShapes shapes = {{"weights", {rows, options.hidden_size() + features}}};
    if (options.bias()) {
      shapes.push_back({"bias", {rows}});
    }
    return shapes;
  }
};

/// A holder of LLTMImpl, like those of torch::nn: LLTM rnn(32, 128); rnn->forward(input).
TORCH_MODULE(LLTM);

/// The options of LSTM, which are torch::nn::LSTM's; proj_size must be 0.
using LSTMOptions = torch::nn::LSTMOptions;

/// torch::nn::LSTM's layers, on this library's kernels. Use it through its holder, LSTM.
///
/// Parameters, results to rounding, and initialization after the same seed are those of
/// torch::nn::LSTM, so that torch::load takes what a torch::nn::LSTM has saved, and the reverse.
/// For layer k and, with the suffix `_reverse`, its second direction, gates in the order i, f, g,
/// o:
///   weight_ih_l[k]  (4H, I) for the first layer, (4H, D * H) for the others
///   weight_hh_l[k]  (4H, H)
///   bias_ih_l[k], bias_hh_l[k]  (4H); absent without bias. Their sum is rounded once, in the
///                               parameters' dtype
class LLTM_API LSTMImpl : public RecurrentImpl<LSTMImpl, LSTMOptions> {
 public:
  LSTMImpl(int64_t input_size, int64_t hidden_size)
      : LSTMImpl(LSTMOptions(input_size, hidden_size)) {}

  /// @throws c10::ValueError if an option is out of range
  /// @throws c10::NotImplementedError if proj_size is not 0
  explicit LSTMImpl(const LSTMOptions& options_) : RecurrentImpl(options_) {
    TORCH_CHECK_NOT_IMPLEMENTED(options.proj_size() == 0,
                                "LSTM: there are no projections, proj_size must be 0, got ",
                                options.proj_size(),
                                ": keep torch::nn::LSTM");
    reset();
  }

 private:
  friend RecurrentImpl;

  static constexpr const char* kName = "LSTM";
  static constexpr int64_t kGates = 4;
  static constexpr auto kLayers = lstm_layers;
};

/// A holder of LSTMImpl, like those of torch::nn: LSTM rnn(32, 128); rnn->forward(input).
TORCH_MODULE(LSTM);

/// The options of GRU, which are torch::nn::GRU's.
using GRUOptions = torch::nn::GRUOptions;

/// torch::nn::GRU's layers, on this library's kernels. Use it through its holder, GRU.
///
/// What is said of LSTM holds for torch::nn::GRU and this module, too. For layer k and, with the
/// suffix `_reverse`, its second direction, gates in the order r, z, n:
///   weight_ih_l[k]  (3H, I) for the first layer, (3H, D * H) for the others
///   weight_hh_l[k]  (3H, H)
///   bias_ih_l[k], bias_hh_l[k]  (3H); absent without bias. Those of r and z are added in float32
///                               or wider
class LLTM_API GRUImpl : public RecurrentImpl<GRUImpl, GRUOptions, at::Tensor> {
 public:
  GRUImpl(int64_t input_size, int64_t hidden_size) : GRUImpl(GRUOptions(input_size, hidden_size)) {}

  /// @throws c10::ValueError if an option is out of range
  explicit GRUImpl(const GRUOptions& options_) : RecurrentImpl(options_) { reset(); }

 private:
  friend RecurrentImpl;

  static constexpr const char* kName = "GRU";
  static constexpr int64_t kGates = 3;
  static constexpr auto kLayers = gru_layers;
};

/// A holder of GRUImpl, like those of torch::nn: GRU rnn(32, 128); rnn->forward(input).
TORCH_MODULE(GRU);

}  // namespace lltm
