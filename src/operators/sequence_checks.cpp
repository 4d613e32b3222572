// The argument checks of lltm::sequence and lltm::sequence_backward.
#include "checker.h"
#include "checks.h"

namespace lltm {
namespace {

using at::Tensor;

constexpr std::string_view kSequence = "lltm::sequence";
constexpr std::string_view kSequenceBackward = "lltm::sequence_backward";

/// The sizes that every other argument is checked against, taken from input and weights.
template <typename Size>
SequenceSizes<Size> sequence_sizes(const Checker& check,
                                   const Tensor& input,
                                   const Tensor& weights) {
  check.rank<Size>({"input", input}, 3, "[steps, batch, input_features]");
  const auto sizes = Sizes<Size>::of(input);
  return {sizes[0], sizes[1], sizes[2], check.weights<Size>(weights, sizes[2])};
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

/// Checks the optional arguments that both operators share: bias, h0, c0, lengths and reset.
template <typename Size>
void run_of_sequence(const Checker& check,
                     const SequenceArguments& arguments,
                     const SequenceSizes<Size>& sizes) {
  const auto& [input, weights, bias, h0, c0, lengths, reset] = arguments;
  check.bias<Size>(bias, sizes.state_size);
  if (is_given(h0)) {
    check.like_input({"h0", *h0});
    check.state({"h0", *h0}, sizes.batch, sizes.state_size);
  }
  if (is_given(c0)) {
    carried_cell(check, {"c0", *c0}, input);
    check.state({"c0", *c0}, sizes.batch, sizes.state_size);
  }
  if (is_given(lengths)) {
    const Argument argument{"lengths", *lengths};
    lengths_of_rows(check, argument);
    check.template shape<Size, 1>(argument, "[batch]", {sizes.batch});
  }
  if (is_given(reset)) {
    const Argument argument{"reset", *reset};
    resets(check, argument);
    check.template shape<Size, 2>(argument, "[steps, batch]", {sizes.steps, sizes.batch});
  }
}

/// Advice for the message about the shape of cells or gates if the sequence was run without `keep`.
std::string_view advice_for(const Tensor& kept) {
  return kept.dim() == 3 && kept.sym_size(0).maybe_as_int() == 0
             ? " (lltm::sequence returns all of it with keep=True)"
             : "";
}

/// The arguments that both operators share.
void check_defined(const Checker& check, const SequenceArguments& arguments) {
  check.defined({"input", arguments.input});
  check.defined({"weights", arguments.weights});
  check.defined_or_absent("bias", arguments.bias);
  check.defined_or_absent("h0", arguments.h0);
  check.defined_or_absent("c0", arguments.c0);
  check.defined_or_absent("lengths", arguments.lengths);
  check.defined_or_absent("reset", arguments.reset);
}

}  // namespace

void check_defined(const SequenceArguments& arguments) {
  check_defined(Checker(kSequence, arguments.input), arguments);
}

void check_defined(const SequenceBackwardArguments& arguments) {
  const Checker check(kSequenceBackward, arguments.input);
  check.defined_or_absent("grad_output", arguments.grad_output);
  check.defined_or_absent("grad_h_n", arguments.grad_h_n);
  check.defined_or_absent("grad_c_n", arguments.grad_c_n);
  check.defined_or_absent("grad_cells", arguments.grad_cells);
  check.defined({"output", arguments.output});
  check.defined({"cells", arguments.cells});
  check.defined({"gates", arguments.gates});
  check_defined(check, arguments.sequence());
}

template <typename Size>
SequenceSizes<Size> check(const SequenceArguments& arguments) {
  check_defined(arguments);
  const Checker check(kSequence, arguments.input);
  check.dense({"input", arguments.input});
  check.supported_dtype();
  check.like_input({"weights", arguments.weights});
  const auto sizes = sequence_sizes<Size>(check, arguments.input, arguments.weights);
  run_of_sequence(check, arguments, sizes);
  return sizes;
}

template <typename Size>
SequenceSizes<Size> check(const SequenceBackwardArguments& arguments) {
  check_defined(arguments);
  const Tensor& input = arguments.input;
  const Checker check(kSequenceBackward, input);
  check.dense({"input", input});
  check.supported_dtype();
  check.like_input({"output", arguments.output});
  check.like_input({"cells", arguments.cells});
  check.like_input({"gates", arguments.gates});
  check.like_input({"weights", arguments.weights});
  const auto sizes = sequence_sizes<Size>(check, input, arguments.weights);
  run_of_sequence(check, arguments.sequence(), sizes);

  const auto gradient = [&](const char* name, const std::optional<Tensor>& tensor, auto shape) {
    if (is_given(tensor)) {
      check.like_input({name, *tensor});
      shape({name, *tensor});
    }
  };
  const auto of_state = [&](const Argument& argument) {
    check.state(argument, sizes.batch, sizes.state_size);
  };
  const auto of_steps = [&](const Argument& argument) { steps_shape(check, argument, sizes); };
  gradient("grad_output", arguments.grad_output, of_steps);
  gradient("grad_h_n", arguments.grad_h_n, of_state);
  if (is_given(arguments.grad_c_n)) {
    const Argument argument{"grad_c_n", *arguments.grad_c_n};
    check.dense_on_inputs_device(argument, "c_n's dtype", final_cell_dtype(arguments.sequence()));
    of_state(argument);
  }
  gradient("grad_cells", arguments.grad_cells, of_steps);

  steps_shape(check, {"output", arguments.output}, sizes);
  steps_shape(check, {"cells", arguments.cells}, sizes, advice_for(arguments.cells));
  check.template shape<Size, 3>({"gates", arguments.gates},
                                "[steps, batch, 3*state_size]",
                                {sizes.steps, sizes.batch, Size(sizes.state_size * 3)},
                                advice_for(arguments.gates));
  return sizes;
}

template SequenceSizes<int64_t> check(const SequenceArguments&);
template SequenceSizes<int64_t> check(const SequenceBackwardArguments&);
template SequenceSizes<c10::SymInt> check(const SequenceArguments&);
template SequenceSizes<c10::SymInt> check(const SequenceBackwardArguments&);

}  // namespace lltm
