#include "sequence.h"

#include "../kernel_arguments.h"
#include "../schedule.h"
#include "backward_steps.h"
#include "forward_steps.h"

#include <ATen/Dispatch.h>

#include <utility>

namespace lltm::cpu {
namespace {

using at::Tensor;

template <typename scalar_t>
StepRows<scalar_t> step_rows(const Tensor& tensor) {
  if (!tensor.defined()) {
    return {};
  }
  return {.data = tensor.const_data_ptr<scalar_t>(),
          .step_stride = tensor.stride(0),
          .row_stride = tensor.stride(1)};
}

/// Owns the tensors that the pointers of a call refer to, besides those of its CallSteps.
struct Sources {
  Sources(const RecurrentArguments& arguments, Tensor input_)
      : input(std::move(input_)),
        weight_ih(with_contiguous_rows(arguments.weight_ih)),
        weight_hh(with_contiguous_rows(arguments.weight_hh)),
        h0(contiguous_or_undefined(arguments.h0)) {}

  template <typename scalar_t>
  SequenceInput<scalar_t> inputs() const {
    return {.rows = step_rows<scalar_t>(input),
            .features = input.size(2),
            .feature_stride = has_contiguous_rows(input) ? 1 : input.stride(2)};
  }

  Tensor input, weight_ih, weight_hh, h0;
};

template <typename scalar_t>
WeightColumns<scalar_t> columns_of(const Tensor& weights) {
  return {.data = weights.const_data_ptr<scalar_t>(),
          .stride = weights.stride(0),
          .columns = weights.size(1)};
}
template <typename scalar_t>
GradientBlock<scalar_t> block_of(const Tensor& gradient) {
  return {.data = mutable_data_or_null<scalar_t>(gradient),
          .stride = gradient.defined() ? gradient.stride(0) : 0};
}

template <typename scalar_t>
void forward(const SequenceOutputs& outputs,
             const RecurrentArguments& arguments,
             const SequenceSizes<int64_t>& sizes,
             bool reverse) {
  const CallSteps call(arguments, reverse);
  const Sources sources(arguments, arguments.input);
  const Tensor bias = contiguous_or_undefined(arguments.bias);
  const Tensor bias_hh = contiguous_or_undefined(arguments.bias_hh);
  const Tensor c0 = contiguous_or_undefined(arguments.c0);
  const auto kept = [](const Tensor& steps) {
    return steps.defined() && steps.numel() > 0 ? steps.mutable_data_ptr<scalar_t>() : nullptr;
  };
  run(SequenceForward<scalar_t>{.cell = arguments.cell,
                                .steps = call.steps,
                                .input = sources.inputs<scalar_t>(),
                                .state_size = sizes.state_size,
                                .gate_columns = sizes.gates,
                                .saved_columns = sizes.state_size * arguments.cell.saved,
                                .weight_ih = columns_of<scalar_t>(sources.weight_ih),
                                .weight_hh = columns_of<scalar_t>(sources.weight_hh),
                                .bias = data_or_null<scalar_t>(bias),
                                .bias_hh = data_or_null<scalar_t>(bias_hh),
                                .h0 = data_or_null<scalar_t>(sources.h0),
                                .c0 = cells_in<scalar_t>(c0),
                                .output = outputs.output.mutable_data_ptr<scalar_t>(),
                                .h_n = mutable_data_or_null<scalar_t>(outputs.h_n),
                                .c_n = cells_out<scalar_t>(outputs.c_n),
                                .cells = kept(outputs.cells),
                                .gates = kept(outputs.gates)});
}

template <typename scalar_t>
void backward(const RecurrentGradients& gradients,
              const RecurrentBackwardArguments& arguments,
              const SequenceSizes<int64_t>& sizes,
              bool reverse) {
  const RecurrentArguments& sequence = arguments.sequence;
  const CallSteps call(sequence, reverse);
  const Sources sources(sequence, with_contiguous_rows(sequence.input));
  const bool reads_c0 = is_given(sequence.c0) && sequence.cell.reads_old_cell;
  const Tensor c0 =
      reads_c0 ? sequence.c0->to(sequence.input.scalar_type()).contiguous() : Tensor();
  // A cell state is rounded, as all of them are in `cells`.
  const Tensor exact_c0 =
      reads_c0 && sequence.cell.carries_h ? sequence.c0->contiguous() : Tensor();
  const Tensor output = arguments.output.contiguous();
  const Tensor cells = arguments.cells.contiguous();
  const Tensor gates = arguments.gates.contiguous();
  const auto gradient_of_steps = [](const std::optional<Tensor>& gradient) {
    return is_given(gradient) ? with_contiguous_rows(*gradient) : Tensor();
  };
  const Tensor grad_output = gradient_of_steps(arguments.grad_output);
  const Tensor grad_cells = gradient_of_steps(arguments.grad_cells);
  const Tensor grad_h_n = contiguous_or_undefined(arguments.grad_h_n);
  const Tensor grad_c_n = contiguous_or_undefined(arguments.grad_c_n);
  zero_if_not_run(sequence.lengths, {gradients.input, gradients.gates});
  run(SequenceBackward<scalar_t>{.cell = sequence.cell,
                                 .steps = call.steps,
                                 .input = sources.inputs<scalar_t>(),
                                 .state_size = sizes.state_size,
                                 .gate_columns = sizes.gates,
                                 .saved_columns = sizes.state_size * sequence.cell.saved,
                                 .weight_ih = columns_of<scalar_t>(sources.weight_ih),
                                 .weight_hh = columns_of<scalar_t>(sources.weight_hh),
                                 .h0 = data_or_null<scalar_t>(sources.h0),
                                 .c0 = data_or_null<scalar_t>(c0),
                                 .exact_c0 = cells_in<scalar_t>(exact_c0).exact,
                                 .output = output.const_data_ptr<scalar_t>(),
                                 .cells = cells.const_data_ptr<scalar_t>(),
                                 .gates = gates.const_data_ptr<scalar_t>(),
                                 .grad_output = step_rows<scalar_t>(grad_output),
                                 .grad_cells = step_rows<scalar_t>(grad_cells),
                                 .grad_h_n = data_or_null<scalar_t>(grad_h_n),
                                 .grad_c_n = cells_in<scalar_t>(grad_c_n),
                                 .d_input = mutable_data_or_null<scalar_t>(gradients.input),
                                 .d_weight_ih = block_of<scalar_t>(gradients.weight_ih),
                                 .d_weight_hh = block_of<scalar_t>(gradients.weight_hh),
                                 .d_bias = mutable_data_or_null<scalar_t>(gradients.bias),
                                 .d_bias_hh = mutable_data_or_null<scalar_t>(gradients.bias_hh),
                                 .d_h0 = mutable_data_or_null<scalar_t>(gradients.h0),
                                 .d_c0 = cells_out<scalar_t>(gradients.c0),
                                 .d_gates = mutable_data_or_null<scalar_t>(gradients.gates)});
}

}  // namespace

void fused_sequence_out(const SequenceOutputs& outputs,
                        const RecurrentArguments& arguments,
                        const SequenceSizes<int64_t>& sizes,
                        bool reverse) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, arguments.input.scalar_type(), "lltm::sequence", [&] {
        forward<scalar_t>(outputs, arguments, sizes, reverse);
      });
}

void fused_sequence_backward_out(const RecurrentGradients& gradients,
                                 const RecurrentBackwardArguments& arguments,
                                 const SequenceSizes<int64_t>& sizes,
                                 bool reverse) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, arguments.output.scalar_type(), "lltm::sequence_backward", [&] {
        backward<scalar_t>(gradients, arguments, sizes, reverse);
      });
}

}  // namespace lltm::cpu
