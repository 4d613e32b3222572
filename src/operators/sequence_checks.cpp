// The argument checks of the operators of a sequence and their backward operators.
#include "checker.h"
#include "checks.h"

namespace lltm {
namespace {

using at::Tensor;

/// What the messages of the cells differ in.
struct Words {
  std::string_view bias, gates;  // the shapes
  std::string_view advice;       // if cells or gates are empty
};

constexpr Words words_for(const LltmSequenceArguments& /*arguments*/) {
  return {.bias = "[3*state_size]",
          .gates = "[steps, batch, 3*state_size]",
          .advice = " (lltm::sequence returns all of it with keep=True)"};
}
constexpr Words words_for(const LstmArguments& /*arguments*/) {
  return {.bias = "[4*state_size]",
          .gates = "[steps, batch, 4*state_size]",
          .advice = " (lltm::lstm returns all of it with keep=True)"};
}
constexpr Words words_for(const GruArguments& /*arguments*/) {
  return {.bias = "[3*state_size]",
          .gates = "[steps, batch, 4*state_size]",
          .advice = " (lltm::gru returns all of it with keep=True)"};
}

void weights_like_input(const Checker& check, const LltmSequenceArguments& arguments) {
  check.like_input({"weights", arguments.weights});
}
template <typename Arguments>
void weights_like_input(const Checker& check, const Arguments& arguments) {
  check.like_input({"weight_ih", arguments.weight_ih});
  check.like_input({"weight_hh", arguments.weight_hh});
}

/// Checks the shapes of input and weights, and takes from them the sizes that every other argument
/// is checked against.
template <typename Size, typename Arguments>
SequenceSizes<Size> sequence_sizes(const Checker& check, const Arguments& arguments) {
  check.rank<Size>({"input", arguments.input}, 3, "[steps, batch, input_features]");
  const auto sizes = Sizes<Size>::of(arguments.input);
  constexpr int kGates = Arguments::kCell.gates;
  if constexpr (requires { arguments.weights; }) {
    const Size state_size = check.weights<Size>(arguments.weights, sizes[2]);
    return {sizes[0], sizes[1], sizes[2], state_size, Size(state_size * kGates)};
  } else {
    const Size state_size =
        check.weights<kGates, Size>(arguments.weight_ih, arguments.weight_hh, sizes[2]);
    return {sizes[0], sizes[1], sizes[2], state_size, Size(state_size * kGates)};
  }
}

template <typename Size>
void steps_shape(const Checker& check,
                 const Argument& argument,
                 const SequenceSizes<Size>& sizes,
                 std::string_view advice = "") {
  check.shape<Size, 3>(
      argument, "[steps, batch, state_size]", {sizes.steps, sizes.batch, sizes.state_size}, advice);
}

/// The initial state that is carried must have input's dtype. For 16-bit inputs, which carry it in
/// float32, it may also be float32.
void carried_state(const Checker& check, const Argument& state, const Tensor& input) {
  check.dense(state);
  const bool is_16_bit = input.element_size() == 2;
  if (!is_16_bit || state.tensor.scalar_type() != at::kFloat) {
    check.dtype(
        state, is_16_bit ? "dtype float32 or input's dtype" : "input's dtype", input.scalar_type());
  }
  check.on_inputs_device(state);
}

void lengths_of_rows(const Checker& check, const Argument& lengths) {
  check.dense(lengths);
  if (lengths.tensor.scalar_type() != at::kInt) {
    check.dtype(lengths, "dtype int32 or", at::kLong);
  }
  check.on_inputs_device(lengths);
}

void resets(const Checker& check, const Argument& reset) {
  check.dense(reset);
  check.dtype(reset,
              "dtype",
              at::kBool,
              " (True where an episode begins)",
              ": write episode_starts.bool(), or mask == 0 for a mask that keeps the state");
  check.on_inputs_device(reset);
}

/// Checks the optional arguments that forward and backward share: biases, states, lengths and
/// reset.
template <typename Size, typename Arguments>
void run_of_sequence(const Checker& check,
                     const Arguments& arguments,
                     const SequenceSizes<Size>& sizes) {
  const std::string_view bias_shape = words_for(arguments).bias;
  if constexpr (Arguments::kCell.adds) {
    check.bias<Size>("bias", arguments.bias, bias_shape, sizes.gates);
  } else {
    check.bias<Size>("bias_ih", arguments.bias_ih, bias_shape, sizes.gates);
    check.bias<Size>("bias_hh", arguments.bias_hh, bias_shape, sizes.gates);
  }
  if (!Arguments::kCell.carries_h && is_given(arguments.h0)) {
    check.like_input({"h0", *arguments.h0});
    check.state({"h0", *arguments.h0}, sizes.batch, sizes.state_size);
  }
  if (is_given(arguments.carried())) {
    const Argument argument{Arguments::kCarried, *arguments.carried()};
    carried_state(check, argument, arguments.input);
    check.state(argument, sizes.batch, sizes.state_size);
  }
  if (is_given(arguments.lengths)) {
    const Argument argument{"lengths", *arguments.lengths};
    lengths_of_rows(check, argument);
    check.template shape<Size, 1>(argument, "[batch]", {sizes.batch});
  }
  if (is_given(arguments.reset)) {
    const Argument argument{"reset", *arguments.reset};
    resets(check, argument);
    check.template shape<Size, 2>(argument, "[steps, batch]", {sizes.steps, sizes.batch});
  }
}

/// `advice` for the message about the shape of cells or gates if the sequence was run without
/// `keep`.
std::string_view if_not_kept(const Tensor& kept, std::string_view advice) {
  return kept.dim() == 3 && kept.sym_size(0).maybe_as_int() == 0 ? advice : "";
}

template <typename Size, typename Arguments>
SequenceSizes<Size> check_forward(const Arguments& arguments) {
  check_defined(arguments);
  const Checker check(arguments.kOperator, arguments.input);
  check.dense({"input", arguments.input});
  check.supported_dtype();
  weights_like_input(check, arguments);
  const auto sizes = sequence_sizes<Size>(check, arguments);
  run_of_sequence(check, arguments, sizes);
  return sizes;
}

template <typename Size, typename Arguments>
SequenceSizes<Size> check_backward(const Arguments& arguments) {
  check_defined(arguments);
  const auto& sequence = arguments.sequence;
  const Words words = words_for(sequence);
  const Checker check(arguments.kOperator, sequence.input);
  check.dense({"input", sequence.input});
  check.supported_dtype();
  constexpr const CellDescriptor& kCell = Arguments::kCell;
  check.like_input({"output", arguments.output});
  if constexpr (!kCell.carries_h) {
    check.like_input({"cells", arguments.cells});
  }
  check.like_input({"gates", arguments.gates});
  weights_like_input(check, sequence);
  const auto sizes = sequence_sizes<Size>(check, sequence);
  run_of_sequence(check, sequence, sizes);

  const auto gradient = [&](const char* name, const std::optional<Tensor>& tensor, auto shape) {
    if (is_given(tensor)) {
      check.like_input({name, *tensor});
      shape({name, *tensor});
    }
  };
  const auto check_state = [&](const Argument& argument) {
    check.state(argument, sizes.batch, sizes.state_size);
  };
  const auto check_steps = [&](const Argument& argument) { steps_shape(check, argument, sizes); };
  gradient("grad_output", arguments.grad_output, check_steps);
  const auto final_state = [&](const char* name, std::string_view whose, const auto& tensor) {
    if (is_given(tensor)) {
      check.dense_on_inputs_device({name, *tensor}, whose, final_cell_dtype(sequence));
      check_state({name, *tensor});
    }
  };
  if constexpr (kCell.carries_h) {
    final_state("grad_h_n", "h_n's dtype", arguments.grad_h_n);
    steps_shape(check, {"output", arguments.output}, sizes);
  } else {
    gradient("grad_h_n", arguments.grad_h_n, check_state);
    final_state("grad_c_n", "c_n's dtype", arguments.grad_c_n);
    gradient("grad_cells", arguments.grad_cells, check_steps);
    steps_shape(check, {"output", arguments.output}, sizes);
    steps_shape(
        check, {"cells", arguments.cells}, sizes, if_not_kept(arguments.cells, words.advice));
  }
  check.template shape<Size, 3>({"gates", arguments.gates},
                                words.gates,
                                {sizes.steps, sizes.batch, Size(sizes.state_size * kCell.saved)},
                                if_not_kept(arguments.gates, words.advice));
  return sizes;
}

}  // namespace

template <typename Size, typename Arguments>
  requires Arguments::kHasSteps
SequenceSizes<Size> check(const Arguments& arguments) {
  if constexpr (requires { arguments.sequence; }) {
    return check_backward<Size>(arguments);
  } else {
    return check_forward<Size>(arguments);
  }
}

#define LLTM_INSTANTIATE(Size)                                              \
  template SequenceSizes<Size> check(const LltmSequenceArguments&);         \
  template SequenceSizes<Size> check(const LltmSequenceBackwardArguments&); \
  template SequenceSizes<Size> check(const LstmArguments&);                 \
  template SequenceSizes<Size> check(const LstmBackwardArguments&);         \
  template SequenceSizes<Size> check(const GruArguments&);                  \
  template SequenceSizes<Size> check(const GruBackwardArguments&);
LLTM_INSTANTIATE(int64_t)
LLTM_INSTANTIATE(c10::SymInt)
#undef LLTM_INSTANTIATE

}  // namespace lltm
