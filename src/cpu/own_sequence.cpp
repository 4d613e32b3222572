#include "own_sequence.h"

#include "../optional_tensor.h"
#include "cell_run.h"
#include "choice.h"
#include "sequence_steps.h"
#include "steps_of_call.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

namespace lltm::cpu {
namespace {

using at::Tensor;

/// The limit for packed operands and a copy of weights with strided rows, out of the 64 MiB that a
/// call's workspace may take.
constexpr int64_t kMaxPackedBytes = 48 << 20;

template <typename scalar_t>
RowsOfSteps<scalar_t> rows_of_steps(const Tensor& tensor) {
  if (!tensor.defined()) {
    return {};
  }
  return {.data = tensor.const_data_ptr<scalar_t>(),
          .step_stride = tensor.stride(0),
          .row_stride = tensor.stride(1)};
}

/// Owns the tensors that the pointers of a call refer to, besides those of its StepsOfCall.
struct Sources {
  Sources(const SequenceArguments& arguments, Tensor input_)
      : input(std::move(input_)),
        weights(with_contiguous_rows(arguments.weights)),
        h0(contiguous_or_undefined(arguments.h0)) {}

  template <typename scalar_t>
  SequenceInput<scalar_t> inputs() const {
    return {.rows = rows_of_steps<scalar_t>(input),
            .features = input.size(2),
            .feature_stride = has_contiguous_rows(input) ? 1 : input.stride(2)};
  }

  Tensor input, weights, h0;
};

/// The state as a contiguous tensor in the accumulation type.
Tensor accumulated_or_undefined(const std::optional<Tensor>& state, at::ScalarType dtype) {
  return is_given(state) ? state->to(dtype).contiguous() : Tensor();
}

/// Where to write the values of `to` in the accumulation type: `to` itself if it has that dtype.
/// Undefined if `to` is.
Tensor accumulated_like(const Tensor& to, at::ScalarType dtype) {
  return !to.defined() || to.scalar_type() == dtype
             ? to
             : at::empty(to.sizes(), to.options().dtype(dtype));
}
void round_into(const Tensor& to, const Tensor& accumulated) {
  if (to.defined() && !to.is_same(accumulated)) {
    Tensor(to).copy_(accumulated);
  }
}

template <typename scalar_t>
void forward(const SequenceOutputs& outputs, const SequenceArguments& arguments, bool reverse) {
  using real = accumulate_t<scalar_t>;
  const StepsOfCall call(arguments, reverse);
  const Sources sources(arguments, arguments.input);
  const Tensor bias = contiguous_or_undefined(arguments.bias);
  const Tensor c0 = contiguous_or_undefined(arguments.c0);
  const bool exact = outputs.c_n.scalar_type() != arguments.input.scalar_type();
  const auto kept = [](const Tensor& steps) {
    return steps.numel() > 0 ? steps.mutable_data_ptr<scalar_t>() : nullptr;
  };
  run(SequenceForward<scalar_t>{
      .steps = call.steps,
      .input = sources.inputs<scalar_t>(),
      .state_size = outputs.output.size(2),
      .weights = sources.weights.const_data_ptr<scalar_t>(),
      .weights_stride = sources.weights.stride(0),
      .bias = data_or_null<scalar_t>(bias),
      .h0 = data_or_null<scalar_t>(sources.h0),
      .c0 = exact ? nullptr : data_or_null<scalar_t>(c0),
      .output = outputs.output.mutable_data_ptr<scalar_t>(),
      .h_n = outputs.h_n.mutable_data_ptr<scalar_t>(),
      .c_n = exact ? nullptr : outputs.c_n.mutable_data_ptr<scalar_t>(),
      .cells = kept(outputs.cells),
      .gates = kept(outputs.gates),
      .exact_c0 = exact ? data_or_null<real>(c0) : nullptr,
      .exact_c_n = exact ? outputs.c_n.mutable_data_ptr<real>() : nullptr});
}

template <typename scalar_t>
void backward(const SequenceGradients& gradients,
              const SequenceBackwardArguments& arguments,
              bool reverse) {
  using real = accumulate_t<scalar_t>;
  constexpr auto accumulated = c10::CppTypeToScalarType<real>::value;
  const StepsOfCall call(arguments.sequence(), reverse);
  const Sources sources(arguments.sequence(), with_contiguous_rows(arguments.input));
  const Tensor output = arguments.output.contiguous();
  const Tensor cells = arguments.cells.contiguous();
  const Tensor gates = arguments.gates.contiguous();
  const auto gradient_of_steps = [](const std::optional<Tensor>& gradient) {
    return is_given(gradient) ? with_contiguous_rows(*gradient) : Tensor();
  };
  const Tensor grad_output = gradient_of_steps(arguments.grad_output);
  const Tensor grad_cells = gradient_of_steps(arguments.grad_cells);
  const Tensor grad_h_n = contiguous_or_undefined(arguments.grad_h_n);
  const Tensor grad_c_n = accumulated_or_undefined(arguments.grad_c_n, accumulated);
  const Tensor d_c0 = accumulated_like(gradients.c0, accumulated);
  run(SequenceBackward<scalar_t>{.steps = call.steps,
                                 .input = sources.inputs<scalar_t>(),
                                 .state_size = output.size(2),
                                 .weights = sources.weights.const_data_ptr<scalar_t>(),
                                 .weights_stride = sources.weights.stride(0),
                                 .h0 = data_or_null<scalar_t>(sources.h0),
                                 .output = output.const_data_ptr<scalar_t>(),
                                 .cells = cells.const_data_ptr<scalar_t>(),
                                 .gates = gates.const_data_ptr<scalar_t>(),
                                 .grad_output = rows_of_steps<scalar_t>(grad_output),
                                 .grad_cells = rows_of_steps<scalar_t>(grad_cells),
                                 .grad_h_n = data_or_null<scalar_t>(grad_h_n),
                                 .grad_c_n = data_or_null<real>(grad_c_n),
                                 .d_input = mutable_data_or_null<scalar_t>(gradients.input),
                                 .d_weights = mutable_data_or_null<scalar_t>(gradients.weights),
                                 .d_bias = mutable_data_or_null<scalar_t>(gradients.bias),
                                 .d_h0 = mutable_data_or_null<scalar_t>(gradients.h0),
                                 .d_c0 = mutable_data_or_null<real>(d_c0)});
  round_into(gradients.c0, d_c0);
}

/// Whether to run the sequence as a cell. Packing the weights does not pay for a single step, but
/// the cell's workspace (gates, and the states in panels) must not be too large.
bool is_cell(const SequenceArguments& arguments) {
  const int64_t elements_of_row = arguments.weights.size(0) + arguments.weights.size(1);
  const int64_t bytes =
      arguments.input.size(1) * elements_of_row * static_cast<int64_t>(sizeof(double));
  return bytes <= kMaxPackedBytes && arguments.input.size(0) == 1 && !is_given(arguments.lengths) &&
         !is_given(arguments.reset) &&
         (!is_given(arguments.c0) || arguments.c0->scalar_type() == arguments.input.scalar_type());
}

template <typename scalar_t>
void forward_of_cell(const SequenceOutputs& outputs, const SequenceArguments& arguments) {
  const Sources sources(arguments, with_contiguous_rows(arguments.input));
  const Tensor bias = contiguous_or_undefined(arguments.bias);
  const Tensor c0 = contiguous_or_undefined(arguments.c0);
  const int64_t batch = outputs.h_n.size(0);
  const int64_t state_size = outputs.h_n.size(1);
  const int64_t size = batch * state_size;
  const bool keeps = outputs.gates.numel() > 0;
  const int64_t absent = sources.h0.defined() && c0.defined() ? 0 : size;
  const Scratch<scalar_t> zeros(absent);
  const Scratch<scalar_t> gates(keeps ? 0 : 3 * size);
  std::fill_n(zeros.data(), absent, scalar_t(0));
  const auto input = sources.inputs<scalar_t>();
  scalar_t* const h = outputs.output.mutable_data_ptr<scalar_t>();
  scalar_t* const cell = outputs.c_n.mutable_data_ptr<scalar_t>();
  run_cell(CellParams<scalar_t>{
      .states = {.batch = batch,
                 .state_size = state_size,
                 .input_features = input.features,
                 .old_h =
                     sources.h0.defined() ? sources.h0.const_data_ptr<scalar_t>() : zeros.data(),
                 .old_h_stride = state_size,
                 .input = input.rows.data,
                 .input_stride = input.rows.row_stride},
      .weights = sources.weights.const_data_ptr<scalar_t>(),
      .weights_stride = sources.weights.stride(0),
      .bias = data_or_null<scalar_t>(bias),
      .old_cell = c0.defined() ? c0.const_data_ptr<scalar_t>() : zeros.data(),
      .gates = keeps ? outputs.gates.mutable_data_ptr<scalar_t>() : gates.data(),
      .new_h = h,
      .new_cell = cell});
  std::copy_n(h, size, outputs.h_n.mutable_data_ptr<scalar_t>());
  if (outputs.cells.numel() > 0) {
    std::copy_n(cell, size, outputs.cells.mutable_data_ptr<scalar_t>());
  }
}

}  // namespace

bool has_own_sequence(const Tensor& weights) {
  // For 16-bit dtypes, the other path multiplies in float.
  const auto dtype = weights.scalar_type();
  if (!has_own_products(dtype == at::kDouble ? at::kDouble : at::kFloat, Pass::kForward)) {
    return false;
  }
  const int64_t state_size = weights.size(0) / 3;
  const int64_t input_features = weights.size(1) - state_size;
  return AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "lltm::sequence", [&] {
    const int64_t elements = packed_gates_size<scalar_t>(state_size, state_size) +
                             packed_gates_size<scalar_t>(state_size, input_features);
    const int64_t copied = has_contiguous_rows(weights) ? 0 : weights.numel();
    return elements * static_cast<int64_t>(sizeof(accumulate_t<scalar_t>)) +
               copied * static_cast<int64_t>(sizeof(scalar_t)) <=
           kMaxPackedBytes;
  });
}

void own_sequence_out(const SequenceOutputs& outputs,
                      const SequenceArguments& arguments,
                      bool reverse) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, arguments.input.scalar_type(), "lltm::sequence", [&] {
        if (is_cell(arguments)) {
          forward_of_cell<scalar_t>(outputs, arguments);
        } else {
          forward<scalar_t>(outputs, arguments, reverse);
        }
      });
}

void own_sequence_backward_out(const SequenceGradients& gradients,
                               const SequenceBackwardArguments& arguments,
                               bool reverse) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, arguments.input.scalar_type(), "lltm::sequence_backward", [&] {
        backward<scalar_t>(gradients, arguments, reverse);
      });
}

}  // namespace lltm::cpu
