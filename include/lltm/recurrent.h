// Layers of a recurrent cell over whole sequences, as modules of torch::nn: what lltm::LLTM and
// lltm::LSTM in lltm/nn.h have in common. Programs include lltm/nn.h.
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
#include <utility>
#include <vector>

namespace lltm {

/// Layers of a cell over whole sequences. They have the interface, the order of states and the
/// dropout of torch::nn::LSTM, and take single sequences, lengths and resets as in Python.
///
/// Derived, the module, has
///   kName                                   its name in messages
///   parameter_shapes(features)              the names and shapes of the parameters of a layer and
///                                           direction, in order, without the suffix `_l[k]`
///   run_direction(parameters, input, ...)   one call of the cell's operator, with its results
/// and calls reset() in its constructors. Options has the members of torch::nn::LSTMOptions,
/// without projections.
template <typename Derived, typename Options>
class RecurrentImpl : public torch::nn::Cloneable<Derived> {
 public:
  using Tensor = at::Tensor;
  using State = std::tuple<Tensor, Tensor>;
  using PackedSequence = torch::nn::utils::rnn::PackedSequence;

  /// Registers the parameters and initializes them.
  void reset() override {
    check_options();
    parameters_of_.clear();
    for (int64_t layer = 0; layer < options.num_layers(); ++layer) {
      for (int64_t direction = 0; direction < directions(); ++direction) {
        const int64_t features =
            layer == 0 ? options.input_size() : directions() * options.hidden_size();
        const std::string suffix =
            "_l" + std::to_string(layer) + (direction == 1 ? "_reverse" : "");
        std::vector<Tensor>& parameters = parameters_of_.emplace_back();
        for (const auto& [name, shape] : derived().parameter_shapes(features)) {
          parameters.push_back(this->register_parameter(name + suffix, torch::empty(shape)));
        }
      }
    }
    derived().reset_parameters();
  }

  /// Runs all layers, for T steps and a batch of N.
  ///
  /// @param input    (T, N, I), or (N, T, I) with batch_first; (T, I) for a single sequence
  /// @param hx       (h_0, c_0), each (D * L, N, H), or (D * L, H) for a single sequence;
  ///                 std::nullopt means zeros. c_0 may be float32 if the input is 16-bit; c_n is
  ///                 then float32, too
  /// @param lengths  (N), int64 or int32, on input's device; (1) or () for a single sequence: the
  ///                 number of steps in each row. Values beyond a row's length are not read, and
  ///                 the output there is zero. Never copied to the host
  /// @param reset    (T, N), bool, on input's device; (N, T) with batch_first, (T) for a single
  ///                 sequence: where true, a new episode begins with this step. No state crosses
  ///                 the boundary between this step and the previous one, in either direction
  /// @return output (T, N, D * H), (N, T, D * H) or (T, D * H), and (h_n, c_n), each (D * L, N, H)
  ///         or (D * L, H): the state after the last step of each layer and, within a layer, of
  ///         each direction
  /// @throws c10::ValueError if input has the wrong number of dimensions or not the parameters'
  ///         dtype
  /// @throws c10::Error for any other mismatch of shape, dtype or device
  std::tuple<Tensor, State> forward(const Tensor& input,
                                    const std::optional<State>& hx = {},
                                    const std::optional<Tensor>& lengths = {},
                                    const std::optional<Tensor>& reset = {}) {
    const Layers layers = run({input, hx, lengths, reset}, /*keep=*/false);
    return {layers.output, {layers.h_n, layers.c_n}};
  }

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<State>())},
                           {2, torch::nn::AnyValue(std::optional<Tensor>())},
                           {3, torch::nn::AnyValue(std::optional<Tensor>())})

 public:
  /// As forward(), and also returns the states of all layers after every step.
  ///
  /// @return output; (h_n, c_n); and (h, c), each (D * L, T, N, H), (D * L, N, T, H) with
  ///         batch_first, (D * L, T, H) for a single sequence: before dropout, and zero beyond a
  ///         row's length. All are differentiable
  std::tuple<Tensor, State, State> states(const Tensor& input,
                                          const std::optional<State>& hx = {},
                                          const std::optional<Tensor>& lengths = {},
                                          const std::optional<Tensor>& reset = {}) {
    const Layers layers = run({input, hx, lengths, reset}, /*keep=*/true);
    return {layers.output, {layers.h_n, layers.c_n}, {layers.h, layers.c}};
  }

  /// As forward(), for a packed input: the lengths are the input's. It is padded for the call.
  ///
  /// @param reset    (T, N), or (N, T) with batch_first. Its rows, like those of hx, are in the
  ///                 order of the batch before packing
  std::tuple<PackedSequence, State> forward_with_packed_input(
      const PackedSequence& input,
      const std::optional<State>& hx = {},
      const std::optional<Tensor>& reset = {}) {
    const Tensor& data = input.data();
    const Tensor& sizes = input.batch_sizes();
    checks::check_defined(Derived::kName, "data of a PackedSequence", data);
    checks::check_given(Derived::kName, "reset", reset);
    checks::check_packed(Derived::kName, data, sizes);
    check_input(data);
    const int64_t steps = sizes.size(0);
    const int64_t batch = sizes[0].item<int64_t>();

    Call call{data, hx, /*lengths=*/{}, reset};
    if (reset) {
      checks::check_size(Derived::kName, "reset", *reset, batched_sizes(steps, batch));
      call.reset = sort(time_first(*reset), input.sorted_indices());
    }
    if (hx) {
      checks::check_pair(Derived::kName, *hx, /*dims=*/3);
      check_states(*hx, batch);
      call.hx = {sort(std::get<0>(*hx), input.sorted_indices()),
                 sort(std::get<1>(*hx), input.sorted_indices())};
    }
    const auto [padded, lengths] =
        at::_pad_packed_sequence(data, sizes, /*batch_first=*/false, /*padding_value=*/0, steps);
    call.input = padded;
    call.lengths = lengths.to(data.device());
    const Layers layers = run_layers(call, /*keep=*/false);
    const Tensor output =
        std::get<0>(at::_pack_padded_sequence(layers.output, lengths, /*batch_first=*/false));
    return {
        PackedSequence(output, sizes, input.sorted_indices(), input.unsorted_indices()),
        {sort(layers.h_n, input.unsorted_indices()), sort(layers.c_n, input.unsorted_indices())}};
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

  /// Initializes all parameters uniformly in +-1/sqrt(hidden_size).
  void initialize_uniformly() {
    const double bound = 1 / std::sqrt(static_cast<double>(options.hidden_size()));
    for (Tensor& parameter : this->parameters(/*recurse=*/false)) {
      torch::nn::init::uniform_(parameter, -bound, bound);
    }
  }

  /// The parameters of each layer and, within a layer, each direction.
  const std::vector<std::vector<Tensor>>& parameters_of_layers() const { return parameters_of_; }

  /// Prints the options as torch::nn::LSTM does, without the closing parenthesis.
  void print_options(std::ostream& stream) const {
    const auto word = [](bool value) { return value ? "true" : "false"; };
    stream << "lltm::" << Derived::kName << "(input_size=" << options.input_size()
           << ", hidden_size=" << options.hidden_size() << ", num_layers=" << options.num_layers()
           << ", bias=" << word(options.bias()) << ", batch_first=" << word(options.batch_first())
           << ", dropout=" << options.dropout()
           << ", bidirectional=" << word(options.bidirectional());
  }

 private:
  /// The arguments of a call.
  struct Call {
    Tensor input;
    std::optional<State> hx;
    std::optional<Tensor> lengths, reset;
  };

  /// Its results.
  struct Layers {
    Tensor output;
    Tensor h_n, c_n;  // (D * L, N, H)
    Tensor h, c;      // (D * L, T, N, H), the states after every step; undefined unless kept
  };

  Derived& derived() { return static_cast<Derived&>(*this); }
  const Derived& derived() const { return static_cast<const Derived&>(*this); }

  int64_t directions() const { return options.bidirectional() ? 2 : 1; }

  Layers run(const Call& call, bool keep) const {
    const Tensor& input = call.input;
    checks::check_defined(Derived::kName, "input", input);
    checks::check_given(Derived::kName, "lengths", call.lengths);
    checks::check_given(Derived::kName, "reset", call.reset);
    checks::check_dimensions(Derived::kName, input);
    check_input(input);
    if (call.reset) {
      checks::check_size(
          Derived::kName, "reset", *call.reset, input.sizes().slice(0, input.dim() - 1));
    }
    if (call.hx) {
      checks::check_pair(Derived::kName, *call.hx, input.dim());
    }
    const bool batched = input.dim() == 3;
    const Call with_batch = batched ? time_first(call) : as_batch(call);
    if (with_batch.hx) {
      check_states(*with_batch.hx, with_batch.input.size(1));
    }
    const Layers layers = run_layers(with_batch, keep);
    return batched ? time_first(layers) : of_one_sequence(layers);
  }

  /// A call with a single sequence as one with a batch of one.
  static Call as_batch(Call call) {
    call.input = call.input.unsqueeze(1);
    if (call.hx) {
      const auto& [h_0, c_0] = *call.hx;
      call.hx = {h_0.unsqueeze(1), c_0.unsqueeze(1)};
    }
    if (call.lengths && call.lengths->dim() == 0) {
      call.lengths = call.lengths->unsqueeze(0);
    }
    if (call.reset) {
      call.reset = call.reset->unsqueeze(1);
    }
    return call;
  }

  /// The results of such a call.
  static Layers of_one_sequence(Layers layers) {
    for (Tensor* result : {&layers.output, &layers.h_n, &layers.c_n}) {
      *result = result->squeeze(1);
    }
    for (Tensor* state : {&layers.h, &layers.c}) {
      if (state->defined()) {
        *state = state->squeeze(2);
      }
    }
    return layers;
  }

  Call time_first(Call call) const {
    call.input = time_first(call.input);
    if (call.reset) {
      call.reset = time_first(*call.reset);
    }
    return call;
  }

  /// The inverse, for the results.
  Layers time_first(Layers layers) const {
    layers.output = time_first(layers.output);  // transposing once more restores the order
    for (Tensor* state : {&layers.h, &layers.c}) {
      if (state->defined() && options.batch_first()) {
        *state = state->transpose(1, 2);
      }
    }
    return layers;
  }

  /// input is (T, N, I), the states are (D * L, N, H), reset is (T, N).
  Layers run_layers(const Call& call, bool keep) const {
    Tensor input = call.input;
    std::optional<Tensor> shifted_reset;
    std::vector<Tensor> h_n, c_n, h, c;
    for (int64_t layer = 0; layer < options.num_layers(); ++layer) {
      std::vector<Tensor> outputs;
      for (int64_t direction = 0; direction < directions(); ++direction) {
        const int64_t index = layer * directions() + direction;
        // Shifted only after the first call, which has checked reset and lengths.
        if (layer == 0 && direction == 1 && call.reset) {
          shifted_reset = shift_to_reverse(*call.reset, call.lengths);
        }
        std::optional<Tensor> h0, c0;
        if (call.hx) {
          h0 = std::get<0>(*call.hx)[index];
          c0 = std::get<1>(*call.hx)[index];
        }
        const auto [output, last_h, last_c, cells, gates] =
            derived().run_direction(parameters_of_[index],
                                    input,
                                    h0,
                                    c0,
                                    call.lengths,
                                    direction == 1 ? shifted_reset : call.reset,
                                    /*reverse=*/direction == 1,
                                    keep);
        outputs.push_back(output);
        h_n.push_back(last_h);
        c_n.push_back(last_c);
        h.push_back(output);
        c.push_back(cells);
      }
      input = outputs.size() == 1 ? outputs[0] : at::cat(outputs, /*dim=*/-1);
      if (options.dropout() > 0 && this->is_training() && layer + 1 < options.num_layers()) {
        input = at::dropout(input, options.dropout(), /*train=*/true);
      }
    }
    Layers layers{input, at::stack(h_n), at::stack(c_n), {}, {}};
    if (keep) {
      layers.h = at::stack(h);
      layers.c = at::stack(c);
    }
    return layers;
  }

  /// The reset (T, N) of a reverse layer: a boundary between steps t-1 and t is crossed before step
  /// t-1. A reset at index `length` belongs to a step that is not run. It must not clear the
  /// initial state, which enters at the row's last step.
  static Tensor shift_to_reverse(const Tensor& reset, const std::optional<Tensor>& lengths) {
    const Tensor shifted = at::constant_pad_nd(reset, {0, 0, 0, 1}).slice(/*dim=*/0, /*start=*/1);
    if (!lengths) {
      return shifted;
    }
    const Tensor next_step =
        at::arange(1, reset.size(0) + 1, reset.options().dtype(at::kLong)).unsqueeze(1);
    return shifted.logical_and(next_step < *lengths);
  }

  static Tensor sort(const Tensor& tensor, const Tensor& indices) {
    return indices.defined() ? tensor.index_select(1, indices) : tensor;
  }

  Tensor time_first(const Tensor& tensor) const {
    return options.batch_first() ? tensor.transpose(0, 1) : tensor;
  }

  std::vector<int64_t> batched_sizes(int64_t steps, int64_t batch) const {
    return options.batch_first() ? std::vector{batch, steps} : std::vector{steps, batch};
  }

  void check_options() const {
    checks::check_dropout(Derived::kName, options.dropout(), options.num_layers());
    checks::check_positive(Derived::kName, "input_size", options.input_size());
    checks::check_positive(Derived::kName, "hidden_size", options.hidden_size());
    checks::check_positive(Derived::kName, "num_layers", options.num_layers());
  }

  void check_input(const Tensor& input) const {
    checks::check_dtype(Derived::kName, input, parameters_of_[0][0].scalar_type());
    checks::check_features(Derived::kName, input, options.input_size());
  }

  void check_states(const State& hx, int64_t batch) const {
    const std::vector<int64_t> expected = {
        options.num_layers() * directions(), batch, options.hidden_size()};
    checks::check_size(Derived::kName, "hidden[0]", std::get<0>(hx), expected);
    checks::check_size(Derived::kName, "hidden[1]", std::get<1>(hx), expected);
  }

  std::vector<std::vector<Tensor>> parameters_of_;  // of each layer and direction
};

}  // namespace lltm
