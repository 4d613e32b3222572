// Layers of a recurrent cell over whole sequences, as modules of torch::nn: what lltm::LLTM and
// lltm::LSTM in lltm/nn.h have in common. Programs include lltm/nn.h.
#pragma once

#include <lltm/lltm.h>

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
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

/// Layers of a cell over whole sequences. Interface, order of the states and dropout are those of
/// torch::nn::LSTM; unbatched input, lengths and resets those of the modules in Python.
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
    const Layers layers = run(input, hx, lengths, reset, /*keep=*/false);
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
    const Layers layers = run(input, hx, lengths, reset, /*keep=*/true);
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
    check_defined("data of a PackedSequence", data);
    check_given("reset", reset);
    TORCH_CHECK(
        data.dim() == 2, Derived::kName, ": input must have 2 dimensions, got ", data.dim());
    check_batch_sizes(sizes, data);
    check_input(data);
    const int64_t steps = sizes.size(0);
    const int64_t batch = sizes[0].item<int64_t>();

    std::optional<Tensor> sorted_reset = reset;
    if (reset) {
      check_size("reset", *reset, batched_sizes(steps, batch));
      sorted_reset = sort(time_first(*reset), input.sorted_indices());
    }
    std::optional<State> sorted_hx = hx;
    if (hx) {
      check_pair(*hx, /*dims=*/3);
      check_states(*hx, batch);
      sorted_hx = {sort(std::get<0>(*hx), input.sorted_indices()),
                   sort(std::get<1>(*hx), input.sorted_indices())};
    }
    const auto [padded, lengths] =
        at::_pad_packed_sequence(data, sizes, /*batch_first=*/false, /*padding_value=*/0, steps);
    const Layers layers =
        run_layers(padded, sorted_hx, lengths.to(data.device()), sorted_reset, /*keep=*/false);
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
  struct Layers {
    Tensor output;
    Tensor h_n, c_n;  // (D * L, N, H)
    Tensor h, c;      // (D * L, T, N, H), the states after every step; undefined unless kept
  };

  Derived& derived() { return static_cast<Derived&>(*this); }
  const Derived& derived() const { return static_cast<const Derived&>(*this); }

  int64_t directions() const { return options.bidirectional() ? 2 : 1; }

  Layers run(Tensor input,
             std::optional<State> hx,
             std::optional<Tensor> lengths,
             std::optional<Tensor> reset,
             bool keep) const {
    check_defined("input", input);
    check_given("lengths", lengths);
    check_given("reset", reset);
    TORCH_CHECK_VALUE(input.dim() == 2 || input.dim() == 3,
                      Derived::kName,
                      ": Expected input to be 2D or 3D, got ",
                      input.dim(),
                      "D instead");
    check_input(input);
    if (reset) {
      check_size("reset", *reset, input.sizes().slice(0, input.dim() - 1));
    }
    const bool batched = input.dim() == 3;
    if (hx) {
      check_pair(*hx, input.dim());
    }
    if (!batched) {
      input = input.unsqueeze(1);
      if (hx) {
        hx = {std::get<0>(*hx).unsqueeze(1), std::get<1>(*hx).unsqueeze(1)};
      }
      if (lengths && lengths->dim() == 0) {
        lengths = lengths->unsqueeze(0);
      }
      if (reset) {
        reset = reset->unsqueeze(1);
      }
    } else {
      input = time_first(input);
      if (reset) {
        reset = time_first(*reset);
      }
    }
    if (hx) {
      check_states(*hx, input.size(1));
    }
    Layers layers = run_layers(input, hx, lengths, reset, keep);
    if (!batched) {
      for (Tensor* result : {&layers.output, &layers.h_n, &layers.c_n}) {
        *result = result->squeeze(1);
      }
    } else {
      layers.output = time_first(layers.output);  // transposing once more restores the order
    }
    for (Tensor* state : {&layers.h, &layers.c}) {
      if (keep && !batched) {
        *state = state->squeeze(2);
      } else if (keep && options.batch_first()) {
        *state = state->transpose(1, 2);
      }
    }
    return layers;
  }

  /// input is (T, N, I), the states are (D * L, N, H), reset is (T, N).
  Layers run_layers(Tensor input,
                    const std::optional<State>& hx,
                    const std::optional<Tensor>& lengths,
                    const std::optional<Tensor>& reset,
                    bool keep) const {
    std::optional<Tensor> shifted_reset;
    std::vector<Tensor> h_n, c_n, h, c;
    for (int64_t layer = 0; layer < options.num_layers(); ++layer) {
      std::vector<Tensor> outputs;
      for (int64_t direction = 0; direction < directions(); ++direction) {
        const int64_t index = layer * directions() + direction;
        // Shifted only after the first call, which has checked reset and lengths.
        if (layer == 0 && direction == 1 && reset) {
          shifted_reset = shift_to_reverse(*reset, lengths);
        }
        std::optional<Tensor> h0, c0;
        if (hx) {
          h0 = std::get<0>(*hx)[index];
          c0 = std::get<1>(*hx)[index];
        }
        const auto [output, last_h, last_c, cells, gates] =
            derived().run_direction(parameters_of_[index],
                                    input,
                                    h0,
                                    c0,
                                    lengths,
                                    direction == 1 ? shifted_reset : reset,
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
    TORCH_CHECK_VALUE(options.dropout() >= 0 && options.dropout() <= 1,
                      Derived::kName,
                      ": dropout should be a number in range [0, 1], got ",
                      options.dropout());
    if (options.dropout() > 0 && options.num_layers() == 1) {
      TORCH_WARN(
          Derived::kName,
          ": dropout acts between layers, so non-zero dropout expects num_layers greater than "
          "1, but got dropout=",
          options.dropout(),
          " and num_layers=1");
    }
    const auto check_positive = [](const char* name, int64_t value) {
      TORCH_CHECK_VALUE(
          value > 0, Derived::kName, ": ", name, " must be greater than zero, got ", value);
    };
    check_positive("input_size", options.input_size());
    check_positive("hidden_size", options.hidden_size());
    check_positive("num_layers", options.num_layers());
  }

  void check_input(const Tensor& input) const {
    const auto name = [](at::ScalarType dtype) {
      return std::string("torch::k") + c10::toString(dtype);
    };
    const at::ScalarType dtype = input.scalar_type();
    const at::ScalarType expected = parameters_of_[0][0].scalar_type();
    const at::DeviceType device = input.device().type();
    if (dtype != expected && !(at::autocast::is_autocast_available(device) &&
                               at::autocast::is_autocast_enabled(device))) {
      // A module can only have a floating-point dtype.
      const std::string or_the_module =
          at::isFloatingType(dtype) ? ", or the module: module->to(" + name(dtype) + ")" : "";
      TORCH_CHECK_VALUE(false,
                        Derived::kName,
                        ": input dtype (",
                        name(dtype),
                        ") does not match weight dtype (",
                        name(expected),
                        "). Convert the input: input.to(",
                        name(expected),
                        ")",
                        or_the_module);
    }
    TORCH_CHECK(input.size(-1) == options.input_size(),
                Derived::kName,
                ": input.size(-1) must be equal to input_size. Expected ",
                options.input_size(),
                ", got ",
                input.size(-1));
  }

  static void check_defined(const char* name, const Tensor& tensor) {
    TORCH_CHECK(tensor.defined(),
                Derived::kName,
                ": expected ",
                name,
                " to be a tensor, got an undefined tensor");
  }

  static void check_given(const char* name, const std::optional<Tensor>& tensor) {
    TORCH_CHECK(!tensor || tensor->defined(),
                Derived::kName,
                ": expected ",
                name,
                " to be a tensor or std::nullopt, got an undefined tensor");
  }

  static void check_batch_sizes(const Tensor& sizes, const Tensor& data) {
    TORCH_CHECK(sizes.size(0) < 2 || (sizes.diff() <= 0).all().item<bool>(),
                Derived::kName,
                ": Expected batch_sizes of a PackedSequence never to increase, got ",
                at::IntArrayRef(sizes.const_data_ptr<int64_t>(), sizes.size(0)));
    const int64_t rows = sizes.sum().item<int64_t>();
    TORCH_CHECK(data.size(0) == rows,
                Derived::kName,
                ": Expected data of a PackedSequence to have ",
                rows,
                " rows, the sum of batch_sizes, got ",
                data.size(0));
  }

  static void check_pair(const State& hx, int64_t dims) {
    const auto& [h_0, c_0] = hx;
    TORCH_CHECK(h_0.defined() && c_0.defined(),
                Derived::kName,
                ": expected hx to be the pair (h_0, c_0), got an undefined tensor");
    TORCH_CHECK(h_0.dim() == dims && c_0.dim() == dims,
                Derived::kName,
                ": For ",
                dims == 3 ? "batched 3-D" : "unbatched 2-D",
                " input, hx and cx should also be ",
                dims,
                "-D but got (",
                h_0.dim(),
                "-D, ",
                c_0.dim(),
                "-D) tensors");
  }

  void check_states(const State& hx, int64_t batch) const {
    const std::vector<int64_t> expected = {
        options.num_layers() * directions(), batch, options.hidden_size()};
    check_size("hidden[0]", std::get<0>(hx), expected);
    check_size("hidden[1]", std::get<1>(hx), expected);
  }

  static void check_size(const char* name, const Tensor& tensor, at::IntArrayRef expected) {
    TORCH_CHECK(tensor.sizes() == expected,
                Derived::kName,
                ": Expected ",
                name,
                " size ",
                expected,
                ", got ",
                tensor.sizes());
  }

  std::vector<std::vector<Tensor>> parameters_of_;  // of each layer and direction
};

}  // namespace lltm
