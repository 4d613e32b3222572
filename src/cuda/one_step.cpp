#include "one_step.h"

#include "../cell/with_cell.h"
#include "../dispatch/optional_tensor.h"
#include "gate_gradients.h"
#include "gradient_products.h"
#include "launch_forward.h"
#include "packed_rows.h"
#include "runtime/launch_check.h"
#include "runtime/rows.h"
#include "sequence.h"

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>

namespace lltm::cuda {
namespace {

using at::Tensor;

// Copies of operands, and zeros in place of a state that is absent. Steps run fewer rows at a time.
constexpr int64_t kWorkspaceBytes = 60 << 20;

bool is_absent_or_has_rows(const std::optional<Tensor>& state) {
  return !is_given(state) || has_rows(*state);
}

/// Without bias and results. A state that is absent has null data. `rows` makes a matrix of a
/// tensor.
OneStepProblem operands_of(const RecurrentArguments& arguments, Matrix (*rows)(const Tensor&)) {
  const auto state = [&](const std::optional<Tensor>& given) {
    return is_given(given) ? rows(*given) : Matrix{};
  };
  OneStepProblem p{};
  p.batch = arguments.input.size(1);
  p.input_features = arguments.input.size(2);
  p.state_size = arguments.weight_hh.size(1);
  p.input = rows(arguments.input);
  p.weights = rows(arguments.weight_hh);
  p.weights_input = rows(arguments.weight_ih);
  p.old_h = state(arguments.h0);
  p.old_cell = state(arguments.c0);
  return p;
}

}  // namespace

std::optional<Shape> one_step_shape(std::optional<Arithmetic> arithmetic,
                                    const SequenceOutputs& outputs,
                                    const RecurrentArguments& arguments) {
  const Tensor& input = arguments.input;
  if (!has_one_step(arguments.cell.type) || !arithmetic || input.size(0) != 1 ||
      is_given(arguments.lengths) || is_given(arguments.reset) ||
      outputs.c_n.scalar_type() != input.scalar_type() || !has_rows(input) ||
      !has_rows(arguments.weight_hh) || !has_rows(arguments.weight_ih) ||
      !is_absent_or_has_rows(arguments.h0) || !is_absent_or_has_rows(arguments.c0)) {
    return std::nullopt;
  }
  const OneStepProblem p = operands_of(arguments, alignment_of);
  const Shape shape = forward_shape(*arithmetic, p, /*is_step=*/false, arguments.cell.type);
  const int64_t zeros = is_given(arguments.h0) && is_given(arguments.c0)
                            ? 0
                            : p.batch * p.state_size * element_size(*arithmetic);
  return shape.pack_bytes + zeros <= kWorkspaceBytes ? std::optional(shape) : std::nullopt;
}

void run_one_step(const ForwardPlan& plan,
                  const SequenceOutputs& outputs,
                  const RecurrentArguments& arguments,
                  const Device& device) {
  OneStepProblem p = operands_of(arguments, rows_of);
  Tensor zeros;
  for (Matrix* const state : {&p.old_h, &p.old_cell}) {
    if (state->data == nullptr) {
      if (!zeros.defined()) {
        zeros = device.empty({p.batch, p.state_size}, arguments.input.scalar_type()).zero_();
      }
      *state = rows_of(zeros);
    }
  }
  const Tensor bias = contiguous_or_undefined(arguments.bias);
  const Tensor bias_hh = contiguous_or_undefined(arguments.bias_hh);
  p.bias = bias.defined() ? bias.const_data_ptr() : nullptr;
  p.bias_hh = bias_hh.defined() ? bias_hh.const_data_ptr() : nullptr;
  p.new_h = outputs.output.mutable_data_ptr();
  p.new_cell = outputs.c_n.mutable_data_ptr();
  p.h_n = outputs.h_n.mutable_data_ptr();
  p.cells = address_of(outputs.cells, /*t=*/0, /*row=*/0);
  p.gates = address_of(outputs.gates, /*t=*/0, /*row=*/0);
  const Tensor packed = pack(p, plan, device);
  check_launch(launch_forward(plan, p, device.stream()));
}

bool is_one_step(const RecurrentBackwardArguments& arguments, const RecurrentGradients& gradients) {
  const RecurrentArguments& sequence = arguments.sequence;
  const auto has_dtype = [&](const std::optional<Tensor>& tensor) {
    return !is_given(tensor) || tensor->scalar_type() == arguments.gates.scalar_type();
  };
  return has_one_step(sequence.cell.type) && arguments.gates.size(0) == 1 &&
         !is_given(sequence.lengths) && !is_given(sequence.reset) && !gradients.gates.defined() &&
         !(is_given(arguments.grad_output) && is_given(arguments.grad_h_n)) &&
         !(is_given(arguments.grad_cells) && is_given(arguments.grad_c_n)) &&
         has_dtype(sequence.c0) && has_dtype(arguments.grad_c_n) && has_rows(sequence.weight_hh) &&
         has_rows(sequence.weight_ih) && has_rows(sequence.input) &&
         is_absent_or_has_rows(sequence.h0);
}

Choice plan_one_step_backward(std::optional<Arithmetic> arithmetic,
                              const RecurrentBackwardArguments& arguments,
                              const DeviceFacts& facts) {
  const RecurrentArguments& sequence = arguments.sequence;
  return plan_backward(
      facts,
      {.work = Work::kBackward,
       .cell = sequence.cell.type,
       .arithmetic = arithmetic,
       .batch = arguments.gates.size(1),
       .input_features = sequence.input.size(2),
       .state_size = arguments.output.size(2),
       .vector_rows = is_describable(sequence.input) &&
                      (!is_given(sequence.h0) || is_describable(*sequence.h0)) &&
                      is_describable(sequence.weight_ih) && is_describable(sequence.weight_hh)});
}

void run_one_step_backward(const Choice& choice,
                           std::optional<Arithmetic> arithmetic,
                           const RecurrentGradients& gradients,
                           const RecurrentBackwardArguments& arguments,
                           const Device& device,
                           const DeviceFacts& facts) {
  const RecurrentArguments& sequence = arguments.sequence;
  const Tensor gates = arguments.gates.contiguous(), cells = arguments.cells.contiguous();
  const int64_t batch = gates.size(1), state_size = cells.size(2);
  const bool few_rows = choice.candidate->group == Group::kFewRows;
  const CellDescriptor& of = sequence.cell;
  const auto d_gates_of = [&](int side) {
    return few_rows ? Tensor()
                    : rows_of_vectors(batch, side * state_size, gates.scalar_type(), device);
  };
  const Tensor d_gates = d_gates_of(of.inputs);
  const Tensor d_gates_of_h = of.adds ? Tensor() : d_gates_of(of.gates);
  // Of a state that is h itself, the product adds to what gate_gradients leaves of it.
  const Tensor& d_h0 = of.carries_h ? gradients.c0 : gradients.h0;
  const auto given = [](const std::optional<Tensor>& first, const std::optional<Tensor>& second) {
    return is_given(first) ? first : second;
  };
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, gates.scalar_type(), "lltm::one_step_backward", [&] {
        GateGradientsParams<scalar_t> cell{};
        cell.batch = batch;
        cell.state_size = state_size;
        cell.grad_h = steps_of<scalar_t>(given(arguments.grad_output, arguments.grad_h_n));
        cell.grad_cell = steps_of<scalar_t>(given(arguments.grad_cells, arguments.grad_c_n));
        cell.old_cell = steps_of<scalar_t>(sequence.c0);
        cell.gates = gates.const_data_ptr<scalar_t>();
        cell.new_cell = cells.const_data_ptr<scalar_t>();
        cell.d_gates = mutable_data_or_null<scalar_t>(d_gates);
        cell.d_gates_of_h = mutable_data_or_null<scalar_t>(d_gates_of_h);
        cell.d_gates_stride = few_rows ? 0 : d_gates.stride(0);
        cell.d_bias = mutable_data_or_null<scalar_t>(gradients.bias);
        cell.d_bias_hh = mutable_data_or_null<scalar_t>(gradients.bias_hh);
        cell.d_old_cell =
            few_rows && of.carries_h ? nullptr : mutable_data_or_null<scalar_t>(gradients.c0);
        cell.blocks_at_once = 2 * facts.multiprocessors;
        cell.blocks_in_clusters = 2 * facts.resident_in_clusters_of(kLargestCluster);
        if constexpr (!std::is_same_v<scalar_t, double>) {
          if (few_rows) {
            const Tensor zeros =
                is_given(sequence.h0)
                    ? Tensor()
                    : device.empty({batch, state_size}, gates.scalar_type()).zero_();
            const BackwardProblem products{
                .batch = batch,
                .input_features = sequence.input.size(2),
                .state_size = state_size,
                .gates = gates.size(2),
                .d_gates = nullptr,
                .d_gates_stride = 0,
                .input = rows_of(sequence.input),
                .weights = rows_of(sequence.weight_hh),
                .weights_input = rows_of(sequence.weight_ih),
                .old_h = rows_of(zeros.defined() ? zeros : *sequence.h0),
                .d_old_h = mutable_data_or_null<scalar_t>(d_h0),
                .d_input = mutable_data_or_null<scalar_t>(gradients.input),
                .d_weights = weight_gradients<scalar_t>(gradients).template as<void>(),
            };
            check_launch(with_cell(of.type, [&]<typename Cell>() {
              return launch_backward_few_rows<Cell>(
                  cell, products, choice.estimate.plan.ranks, device.stream());
            }));
            return;
          }
        }
        with_cell(of.type, [&]<typename Cell>() {
          compute_gate_gradients<Cell>(cell, /*later=*/nullptr, device);
        });
      });
  if (few_rows) {
    return;
  }
  if (of.adds) {
    compute_gradient_products(
        d_gates, arithmetic, gradients, d_h0, arguments, device, facts, /*reverse=*/false);
    return;
  }
  const bool has_h0 = is_given(sequence.h0);
  if (!has_h0 && gradients.weight_hh.defined()) {
    gradients.weight_hh.zero_();
  }
  const ProductsOfSide of_x{
      .d_weights = gradients.weight_ih,
      .d_operand = gradients.input.defined() ? gradients.input.squeeze(0) : Tensor(),
      .d_gates = d_gates,
      .operand = sequence.input.squeeze(0),
      .weights = sequence.weight_ih};
  const ProductsOfSide of_h{.d_weights = has_h0 ? gradients.weight_hh : Tensor(),
                            .d_operand = d_h0,
                            .d_gates = d_gates_of_h,
                            .operand = has_h0 ? *sequence.h0 : Tensor(),
                            .weights = sequence.weight_hh,
                            .adds = true};
  compute_products_of_side(of_x, arithmetic, sequence, device, facts);
  compute_products_of_side(of_h, arithmetic, sequence, device, facts);
}

}  // namespace lltm::cuda
