// The argument checks of lltm::sequence, lltm::lstm and their backward operators.
#include "checker.h"
#include "checks.h"

namespace lltm {
namespace {

using at::Tensor;

/// What the messages of the two cells differ in.
struct Words {
  std::string_view bias, gates;  // the shapes
  std::string_view advice;       // if cells or gates are empty
};

constexpr Words words_for(const SequenceArguments& /*arguments*/) {
  return {.bias = "[3*state_size]",
          .gates = "[steps, batch, 3*state_size]",
          .advice = " (lltm::sequence returns all of it with keep=True)"};
}
constexpr Words words_for(const LstmArguments& /*arguments*/) {
  return {.bias = "[4*state_size]",
          .gates = "[steps, batch, 4*state_size]",
          .advice = " (lltm::lstm returns all of it with keep=True)"};
}

void weights_like_input(const Checker& check, const SequenceArguments& arguments) {
  check.like_input({"weights", arguments.weights});
}
void weights_like_input(const Checker& check, const LstmArguments& arguments) {
  check.like_input({"weight_ih", arguments.weight_ih});
  check.like_input({"weight_hh", arguments.weight_hh});
}

/// Checks the shapes of input and weights, and takes from them the sizes that every other argument
/// is checked against.
template <typename Size, typename Arguments>
SequenceSizes<Size> sequence_sizes(const Checker& check, const Arguments& arguments) {
  check.rank<Size>({"input", arguments.input}, 3, "[steps, batch, input_features]");
  const auto sizes = Sizes<Size>::of(arguments.input);
  if constexpr (requires { arguments.weights; }) {
    const Size state_size = check.weights<Size>(arguments.weights, sizes[2]);
    return {sizes[0], sizes[1], sizes[2], state_size, Size(state_size * cell::Lltm::kGates)};
  } else {
    const Size state_size = check.weights<Size>(arguments.weight_ih, arguments.weight_hh, sizes[2]);
    return {sizes[0], sizes[1], sizes[2], state_size, Size(state_size * cell::Lstm::kGates)};
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

/// c0 must have input's dtype. For 16-bit inputs, which carry the cell state in float32, it may
/// also be float32.
void carried_cell(const Checker& check, const Argument& c0, const Tensor& input) {
  check.dense(c0);
  const bool is_16_bit = input.element_size() == 2;
  if (!is_16_bit || c0.tensor.scalar_type() != at::kFloat) {
    check.dtype(
        c0, is_16_bit ? "dtype float32 or input's dtype" : "input's dtype", input.scalar_type());
  }
  check.on_inputs_device(c0);
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

/// Checks the optional arguments that forward and backward share: bias, h0, c0, lengths and reset.
template <typename Size, typename Arguments>
void run_of_sequence(const Checker& check,
                     const Arguments& arguments,
                     const SequenceSizes<Size>& sizes) {
  check.bias<Size>(arguments.bias, words_for(arguments).bias, sizes.gates);
  if (is_given(arguments.h0)) {
    check.like_input({"h0", *arguments.h0});
    check.state({"h0", *arguments.h0}, sizes.batch, sizes.state_size);
  }
  if (is_given(arguments.c0)) {
    carried_cell(check, {"c0", *arguments.c0}, arguments.input);
    check.state({"c0", *arguments.c0}, sizes.batch, sizes.state_size);
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
  check.like_input({"output", arguments.output});
  check.like_input({"cells", arguments.cells});
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
  gradient("grad_h_n", arguments.grad_h_n, check_state);
  if (is_given(arguments.grad_c_n)) {
    const Argument argument{"grad_c_n", *arguments.grad_c_n};
    check.dense_on_inputs_device(argument, "c_n's dtype", final_cell_dtype(sequence));
    check_state(argument);
  }
  gradient("grad_cells", arguments.grad_cells, check_steps);

  steps_shape(check, {"output", arguments.output}, sizes);
  steps_shape(check, {"cells", arguments.cells}, sizes, if_not_kept(arguments.cells, words.advice));
  check.template shape<Size, 3>({"gates", arguments.gates},
                                words.gates,
                                {sizes.steps, sizes.batch, sizes.gates},
                                if_not_kept(arguments.gates, words.advice));
  return sizes;
}

}  // namespace

template <typename Size>
SequenceSizes<Size> check(const SequenceArguments& arguments) {
  return check_forward<Size>(arguments);
}
template <typename Size>
SequenceSizes<Size> check(const LstmArguments& arguments) {
  return check_forward<Size>(arguments);
}
template <typename Size>
SequenceSizes<Size> check(const SequenceBackwardArguments& arguments) {
  return check_backward<Size>(arguments);
}
template <typename Size>
SequenceSizes<Size> check(const LstmBackwardArguments& arguments) {
  return check_backward<Size>(arguments);
}

#define LLTM_INSTANTIATE(Size)                                          \
  template SequenceSizes<Size> check(const SequenceArguments&);         \
  template SequenceSizes<Size> check(const SequenceBackwardArguments&); \
  template SequenceSizes<Size> check(const LstmArguments&);             \
  template SequenceSizes<Size> check(const LstmBackwardArguments&);
LLTM_INSTANTIATE(int64_t)
LLTM_INSTANTIATE(c10::SymInt)
#undef LLTM_INSTANTIATE

}  // namespace lltm
