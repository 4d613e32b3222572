// lltm::LLTM, a module of torch::nn: layers of LLTM cells over whole sequences.
//
// Replaces torch::nn::LSTM, as lltm.LLTM replaces nn.LSTM in Python. Header-only: it includes
// PyTorch's C++ frontend, which lltm/lltm.h does not need.
//
//   lltm::LLTM rnn(lltm::LLTMOptions(32, 128).num_layers(2).bidirectional(true));
//   auto [output, state] = rnn->forward(torch::randn({50, 16, 32}));  // steps, batch, features
//   auto [h_n, c_n] = state;
//
// The parameters have the names, shapes and order of lltm.LLTM's in Python, so a checkpoint of one
// can be loaded into the other.
#pragma once

#include <lltm/lltm.h>

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/pimpl.h>
#include <torch/nn/utils/rnn.h>

#include <cmath>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

namespace lltm {

/// The options of LLTM: those of torch::nn::LSTM, without projections.
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
};

/// Layers of LLTM cells over whole sequences. Use it through its holder, LLTM.
///
/// Interface, order of the states and dropout are those of torch::nn::LSTM; unbatched input,
/// lengths and resets those of lltm.LLTM in Python. Parameters, initialized uniformly in
/// +-1/sqrt(H), for layer k and, with the suffix `_reverse`, its second direction:
///   weights_l[k]  (3H, H + I) for the first layer, (3H, H + D * H) for the others. Rows in the
///                 order input gate, output gate, candidate; columns in the order h, x
///   bias_l[k]     (3H); absent without bias
///
/// There is no forget gate, so |c| can grow with the number of steps: reset the state where a new
/// sequence begins.
class LLTM_API LLTMImpl : public torch::nn::Cloneable<LLTMImpl> {
 public:
  using Tensor = at::Tensor;
  using State = std::tuple<Tensor, Tensor>;
  using PackedSequence = torch::nn::utils::rnn::PackedSequence;

  LLTMImpl(int64_t input_size, int64_t hidden_size)
      : LLTMImpl(LLTMOptions(input_size, hidden_size)) {}

  /// @throws c10::ValueError if an option is out of range
  explicit LLTMImpl(const LLTMOptions& options_) : options(options_) { reset(); }

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
        const int64_t rows = 3 * options.hidden_size();
        Parameters& parameters = parameters_of_.emplace_back();
        parameters.weights = register_parameter(
            "weights" + suffix, torch::empty({rows, options.hidden_size() + features}));
        if (options.bias()) {
          parameters.bias = register_parameter("bias" + suffix, torch::empty({rows}));
        }
      }
    }
    reset_parameters();
  }

  /// Reinitializes the parameters uniformly in +-1/sqrt(hidden_size).
  void reset_parameters() {
    const double bound = 1 / std::sqrt(static_cast<double>(options.hidden_size()));
    for (Tensor& parameter : parameters(/*recurse=*/false)) {
      torch::nn::init::uniform_(parameter, -bound, bound);
    }
  }

  /// Runs all layers, for T steps and a batch of N.
  ///
  /// @param input    (T, N, I), or (N, T, I) with batch_first; (T, I) for a single sequence
  /// @param hx       (h_0, c_0), each (D * L, N, H), or (D * L, H) for a single sequence;
  ///                 std::nullopt means zeros. c_0 may be float32 if the input is 16-bit; c_n is
  ///                 then float32, too
  /// @param lengths  (N), int64, on input's device; (1) or () for a single sequence: the number of
  ///                 steps in each row. Values beyond a row's length are not read, and the output
  ///                 there is zero. Never copied to the host
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
    TORCH_CHECK(data.dim() == 2, "LLTM: input must have 2 dimensions, got ", data.dim());
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

  /// The weights and bias of each layer and direction, in the order of the states.
  std::vector<Tensor> all_weights() const { return parameters(/*recurse=*/false); }

  /// Prints the options: `lltm::LLTM(input_size=32, hidden_size=128, ...)`.
  void pretty_print(std::ostream& stream) const override {
    const auto word = [](bool value) { return value ? "true" : "false"; };
    stream << "lltm::LLTM(input_size=" << options.input_size()
           << ", hidden_size=" << options.hidden_size() << ", num_layers=" << options.num_layers()
           << ", bias=" << word(options.bias()) << ", batch_first=" << word(options.batch_first())
           << ", dropout=" << options.dropout()
           << ", bidirectional=" << word(options.bidirectional()) << ")";
  }

  /// The options with which this module was constructed.
  LLTMOptions options;

 private:
  /// Of one layer and direction.
  struct Parameters {
    Tensor weights;
    std::optional<Tensor> bias;
  };

  struct Layers {
    Tensor output;
    Tensor h_n, c_n;  // (D * L, N, H)
    Tensor h, c;      // (D * L, T, N, H), the states after every step; undefined unless kept
  };

  int64_t directions() const { return options.bidirectional() ? 2 : 1; }

  Layers run(Tensor input,
             std::optional<State> hx,
             std::optional<Tensor> lengths,
             std::optional<Tensor> reset,
             bool keep) const {
    TORCH_CHECK_VALUE(input.dim() == 2 || input.dim() == 3,
                      "LLTM: Expected input to be 2D or 3D, got ",
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
        const Parameters& parameters = parameters_of_[index];
        const auto [output, last_h, last_c, cells, gates] =
            sequence(input,
                     parameters.weights,
                     parameters.bias,
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
      if (options.dropout() > 0 && is_training() && layer + 1 < options.num_layers()) {
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
                      "LLTM: dropout should be a number in range [0, 1], got ",
                      options.dropout());
    if (options.dropout() > 0 && options.num_layers() == 1) {
      TORCH_WARN(
          "LLTM: dropout acts between layers, so non-zero dropout expects num_layers greater than "
          "1, but got dropout=",
          options.dropout(),
          " and num_layers=1");
    }
    const auto check_positive = [](const char* name, int64_t value) {
      TORCH_CHECK_VALUE(value > 0, "LLTM: ", name, " must be greater than zero, got ", value);
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
    const at::ScalarType expected = parameters_of_[0].weights.scalar_type();
    const at::DeviceType device = input.device().type();
    if (dtype != expected && !(at::autocast::is_autocast_available(device) &&
                               at::autocast::is_autocast_enabled(device))) {
      // A module can only have a floating-point dtype.
      const std::string or_the_module =
          at::isFloatingType(dtype) ? ", or the module: module->to(" + name(dtype) + ")" : "";
      TORCH_CHECK_VALUE(false,
                        "LLTM: input dtype (",
                        name(dtype),
                        ") does not match weight dtype (",
                        name(expected),
                        "). Convert the input: input.to(",
                        name(expected),
                        ")",
                        or_the_module);
    }
    TORCH_CHECK(input.size(-1) == options.input_size(),
                "LLTM: input.size(-1) must be equal to input_size. Expected ",
                options.input_size(),
                ", got ",
                input.size(-1));
  }

  static void check_batch_sizes(const Tensor& sizes, const Tensor& data) {
    TORCH_CHECK(sizes.size(0) < 2 || (sizes.diff() <= 0).all().item<bool>(),
                "LLTM: Expected batch_sizes of a PackedSequence never to increase, got ",
                at::IntArrayRef(sizes.const_data_ptr<int64_t>(), sizes.size(0)));
    const int64_t rows = sizes.sum().item<int64_t>();
    TORCH_CHECK(data.size(0) == rows,
                "LLTM: Expected data of a PackedSequence to have ",
                rows,
                " rows, the sum of batch_sizes, got ",
                data.size(0));
  }

  static void check_pair(const State& hx, int64_t dims) {
    const auto& [h_0, c_0] = hx;
    TORCH_CHECK(h_0.defined() && c_0.defined(),
                "LLTM: expected hx to be the pair (h_0, c_0), got an undefined tensor");
    TORCH_CHECK(h_0.dim() == dims && c_0.dim() == dims,
                "LLTM: For ",
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
                "LLTM: Expected ",
                name,
                " size ",
                expected,
                ", got ",
                tensor.sizes());
  }

  std::vector<Parameters> parameters_of_;  // each layer and, within a layer, each direction
};

/// A holder of LLTMImpl, like those of torch::nn: LLTM rnn(32, 128); rnn->forward(input).
TORCH_MODULE(LLTM);

}  // namespace lltm
