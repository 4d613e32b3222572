// Layers of a recurrent cell over whole sequences, as modules of torch::nn: what lltm::LSTM,
// lltm::GRU and lltm::LLTM in lltm/nn.h have in common. Programs include lltm/nn.h.
#pragma once

#include <lltm/lltm.h>
#include <lltm/recurrent_checks.h>

#include <ATen/Functions.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/utils/rnn.h>

#include <cmath>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace lltm {

/// Layers of a cell over whole sequences. They have the interface, the order of states and the
/// dropout of torch::nn::LSTM, or of torch::nn::GRU if h is the only state, and take single
/// sequences, lengths and resets as in Python.
///
/// Derived, the module, has
///   kName    its name in messages
///   kGates   the rows of its weights, in multiples of H
///   kLayers  the function that runs all layers, such as lstm_layers()
/// and calls reset() in its constructors. Its own reset_parameters() and parameter_shapes(), if it
/// has them, take the place of these, which are those of torch::nn. Options has the members of
/// torch::nn::GRUOptions.
template <typename Derived,
          typename Options,
          typename ItsState = std::tuple<at::Tensor, at::Tensor>>
class RecurrentImpl : public torch::nn::Cloneable<Derived> {
 public:
  using Tensor = at::Tensor;
  /// The pair of h and c, or of a GRU the tensor h.
  using State = ItsState;
  /// An initial state. std::nullopt, or of a GRU an undefined tensor, means zeros.
  using InitialState =
      std::conditional_t<std::is_same_v<State, Tensor>, Tensor, std::optional<State>>;
  using PackedSequence = torch::nn::utils::rnn::PackedSequence;

  /// Registers the parameters and initializes them.
  void reset() override {
    check_options();
    for (int64_t layer = 0; layer < options.num_layers(); ++layer) {
      for (int64_t direction = 0; direction < directions(); ++direction) {
        const int64_t features =
            layer == 0 ? options.input_size() : directions() * options.hidden_size();
        const std::string suffix =
            "_l" + std::to_string(layer) + (direction == 1 ? "_reverse" : "");
        for (const auto& [name, shape] : derived().parameter_shapes(features)) {
          this->register_parameter(name + suffix, torch::empty(shape));
        }
      }
    }
    derived().reset_parameters();
  }

  /// Runs all layers, for T steps and a batch of N.
  ///
  /// @param input    (T, N, I), or (N, T, I) with batch_first; (T, I) for a single sequence
  /// @param hx       (h_0, c_0), or of a GRU h_0, each (D * L, N, H), or (D * L, H) for a single
  ///                 sequence; zeros by default. c_0, or a GRU's h_0, may be float32 if the input
  ///                 is 16-bit; c_n, or h_n, is then float32, too
  /// @param lengths  (N), int64 or int32, on input's device; (1) or () for a single sequence: the
  ///                 number of steps in each row. Values beyond a row's length are not read, and
  ///                 the output there is zero. Never copied to the host
  /// @param reset    (T, N), bool, on input's device; (N, T) with batch_first, (T) for a single
  ///                 sequence: where true, a new episode begins with this step. No state crosses
  ///                 the boundary between this step and the previous one, in either direction
  /// @return output (T, N, D * H), (N, T, D * H) or (T, D * H), and (h_n, c_n), or of a GRU h_n,
  ///         each (D * L, N, H) or (D * L, H): the state after the last step of each layer and,
  ///         within a layer, of each direction
  /// @throws c10::ValueError if input has the wrong number of dimensions or not the parameters'
  ///         dtype
  /// @throws c10::Error for any other mismatch of shape, dtype or device
  std::tuple<Tensor, State> forward(const Tensor& input,
                                    const InitialState& hx = {},
                                    const std::optional<Tensor>& lengths = {},
                                    const std::optional<Tensor>& reset = {}) {
    const auto [output, last, steps] = run(input, hx, lengths, reset, {});
    return {output, last};
  }

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(InitialState())},
                           {2, torch::nn::AnyValue(std::optional<Tensor>())},
                           {3, torch::nn::AnyValue(std::optional<Tensor>())})

 public:
  /// As forward(), and also returns the states of all layers after every step.
  ///
  /// @return output; (h_n, c_n), or h_n; and (h, c), or h, each (D * L, T, N, H), (D * L, N, T, H)
  ///         with batch_first, (D * L, T, H) for a single sequence: before dropout, and zero beyond
  ///         a row's length. All are differentiable
  std::tuple<Tensor, State, State> states(const Tensor& input,
                                          const InitialState& hx = {},
                                          const std::optional<Tensor>& lengths = {},
                                          const std::optional<Tensor>& reset = {}) {
    LayersArguments arguments;
    arguments.keep = true;
    return run(input, hx, lengths, reset, arguments);
  }

  /// As forward(), for a packed input: the lengths are the input's. It is padded for the call.
  ///
  /// @param reset    (T, N), or (N, T) with batch_first. Its rows, like those of hx, are in the
  ///                 order of the batch before packing
  std::tuple<PackedSequence, State> forward_with_packed_input(
      const PackedSequence& input,
      const InitialState& hx = {},
      const std::optional<Tensor>& reset = {}) {
    checks::check_defined(Derived::kName, "data of a PackedSequence", input.data());
    LayersArguments arguments;
    arguments.batch_sizes = input.batch_sizes();
    arguments.sorted_indices = input.sorted_indices();
    arguments.unsorted_indices = input.unsorted_indices();
    const auto [output, last, steps] = run(input.data(), hx, {}, reset, arguments);
    return {PackedSequence(
                output, input.batch_sizes(), input.sorted_indices(), input.unsorted_indices()),
            last};
  }

  /// Reinitializes the parameters uniformly in +-1/sqrt(hidden_size).
  void reset_parameters() {
    const double bound = 1 / std::sqrt(static_cast<double>(options.hidden_size()));
    for (Tensor& parameter : this->parameters(/*recurse=*/false)) {
      torch::nn::init::uniform_(parameter, -bound, bound);
    }
  }

  /// Prints the options: `lltm::LSTM(input_size=32, hidden_size=128, ...)`.
  void pretty_print(std::ostream& stream) const override {
    print_options(stream);
    stream << ")";
  }

  /// Does nothing: the operator reads the parameters in place.
  void flatten_parameters() {}

  /// The parameters of each layer and direction, in the order of the states.
  std::vector<Tensor> all_weights() const { return this->parameters(/*recurse=*/false); }

  /// The options with which this module was constructed.
  Options options;

 protected:
  using NamedShapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

  explicit RecurrentImpl(const Options& options_) : options(options_) {}

  /// The names, without the suffix `_l[k]`, and the shapes of the parameters of a layer and
  /// direction, in order.
  NamedShapes parameter_shapes(int64_t features) const {
    const int64_t rows = Derived::kGates * options.hidden_size();
    NamedShapes shapes = {{"weight_ih", {rows, features}},
                          {"weight_hh", {rows, options.hidden_size()}}};
    if (options.bias()) {
      shapes.push_back({"bias_ih", {rows}});
      shapes.push_back({"bias_hh", {rows}});
    }
    return shapes;
  }

  /// Prints the options as torch::nn does, without the closing parenthesis.
  void print_options(std::ostream& stream) const {
    const auto word = [](bool value) { return value ? "true" : "false"; };
    stream << "lltm::" << Derived::kName << "(input_size=" << options.input_size()
           << ", hidden_size=" << options.hidden_size() << ", num_layers=" << options.num_layers()
           << ", bias=" << word(options.bias()) << ", batch_first=" << word(options.batch_first())
           << ", dropout=" << options.dropout()
           << ", bidirectional=" << word(options.bidirectional());
  }

 private:
  static constexpr bool kHasCellState = !std::is_same_v<State, Tensor>;

  Derived& derived() { return static_cast<Derived&>(*this); }
  const Derived& derived() const { return static_cast<const Derived&>(*this); }

  int64_t directions() const { return options.bidirectional() ? 2 : 1; }

  /// Completes the arguments. Returns output, the last state and, if it is kept, that of every
  /// step.
  std::tuple<Tensor, State, State> run(const Tensor& input,
                                       const InitialState& hx,
                                       const std::optional<Tensor>& lengths,
                                       const std::optional<Tensor>& reset,
                                       LayersArguments arguments) const {
    checks::check_defined(Derived::kName, "input", input);
    checks::check_given(Derived::kName, "lengths", lengths);
    checks::check_given(Derived::kName, "reset", reset);
    const std::vector<Tensor> parameters = all_weights();
    checks::check_dtype(Derived::kName, input, parameters[0].scalar_type());
    if constexpr (!kHasCellState) {
      arguments.h0 = hx;
    } else if (hx) {
      checks::check_pair(Derived::kName, *hx);
      std::tie(arguments.h0, arguments.c0) = *hx;
    }
    arguments.lengths = lengths;
    arguments.reset = reset;
    arguments.has_biases = options.bias();
    arguments.batch_first = options.batch_first();
    arguments.dropout = this->is_training() ? options.dropout() : 0;
    arguments.bidirectional = options.bidirectional();
    const auto results = Derived::kLayers(input, parameters, arguments);
    if constexpr (kHasCellState) {
      const auto& [output, h_n, c_n, steps] = results;
      return {output, {h_n, c_n}, arguments.keep ? State(steps[0], steps[1]) : State()};
    } else {
      const auto& [output, h_n, steps] = results;
      return {output, h_n, arguments.keep ? steps[0] : State()};
    }
  }

  void check_options() const {
    checks::check_dropout(Derived::kName, options.dropout(), options.num_layers());
    checks::check_positive(Derived::kName, "input_size", options.input_size());
    checks::check_positive(Derived::kName, "hidden_size", options.hidden_size());
    checks::check_positive(Derived::kName, "num_layers", options.num_layers());
  }
};

}  // namespace lltm
