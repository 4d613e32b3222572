#include "sequence.h"

#include "../kernel_arguments.h"
#include "../schedule.h"
#include "backward_steps.h"
#include "forward_steps.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>

#include <utility>

namespace lltm::cpu {
namespace {

using at::Tensor;

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

  template <typename scalar_t>
  Weights<scalar_t> blocks() const {
    const scalar_t* const data = weights.const_data_ptr<scalar_t>();
    return {.h = data, .input = data + weights.size(0) / 3, .stride = weights.stride(0)};
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
      .weights = sources.blocks<scalar_t>(),
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
  zero_if_not_run(arguments.lengths, {gradients.input, gradients.gates});
  run(SequenceBackward<scalar_t>{.steps = call.steps,
                                 .input = sources.inputs<scalar_t>(),
                                 .state_size = output.size(2),
                                 .weights = sources.blocks<scalar_t>(),
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
                                 .d_c0 = mutable_data_or_null<real>(d_c0),
                                 .d_gates = mutable_data_or_null<scalar_t>(gradients.gates)});
  round_into(gradients.c0, d_c0);
}

}  // namespace

void fused_sequence_out(const SequenceOutputs& outputs,
                        const SequenceArguments& arguments,
                        bool reverse) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, arguments.input.scalar_type(), "lltm::sequence", [&] {
        forward<scalar_t>(outputs, arguments, reverse);
      });
}

void fused_sequence_backward_out(const SequenceGradients& gradients,
                                 const SequenceBackwardArguments& arguments,
                                 bool reverse) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, arguments.input.scalar_type(), "lltm::sequence_backward", [&] {
        backward<scalar_t>(gradients, arguments, reverse);
      });
}

}  // namespace lltm::cpu
