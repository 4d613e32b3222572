#include "sequence.h"

#include "../optional_tensor.h"
#include "../without_autocast.h"
#include "cell.h"
#include "rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>

#include <vector>

namespace lltm::formula {

using at::Tensor;

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> sequence(const SequenceArguments& arguments,
                                                            bool reverse,
                                                            bool keep) {
  const auto sizes = check<c10::SymInt>(arguments);
  const WithoutAutocast without_autocast;
  const auto& [input, weights, bias, h0, c0, lengths, reset] = arguments;
  const int64_t steps = number_of(sizes.steps);
  const Rows rows(arguments, steps, reverse);
  const auto dtype = input.scalar_type();

  Tensor h = state_or_zeros(h0, input, sizes);
  Tensor cell = accumulated(state_or_zeros(c0, input, sizes));
  std::vector<Tensor> output, cells, gates;
  for (int64_t k = 0; k < steps; ++k) {
    const int64_t t = rows.time_of(k);
    const Tensor old_h = rows.zero_where_reset(t, h);
    const Tensor old_cell = rows.zero_unless_running(t, rows.zero_where_reset(t, cell));
    const Tensor h_and_input = rows.zero_unless_running(t, at::cat({old_h, input.select(0, t)}, 1));
    const Tensor z = at::linear(h_and_input, weights, bias);
    const State state = step(z, old_cell);
    const Tensor new_h = state.h.to(dtype);
    output.push_back(rows.zero_unless_running(t, new_h));
    if (keep) {
      cells.push_back(rows.zero_unless_running(t, state.cell).to(dtype));
      gates.push_back(rows.zero_unless_running(t, z.detach()));
    }
    h = rows.where_running(t, new_h, h);
    cell = rows.where_running(t, state.cell, cell);
  }
  if (steps == 0) {
    // The final state equals the initial one, but must not share storage with it.
    h = h.clone();
    cell = cell.clone();
  }
  const auto stack = [&](const std::vector<Tensor>& of_steps, const c10::SymInt& columns) {
    return stacked(of_steps, reverse, input, {sizes.batch, columns});
  };
  return {stack(output, sizes.state_size),
          h,
          cell.to(final_cell_dtype(arguments)),
          stack(cells, sizes.state_size),
          stack(gates, sizes.state_size * 3)};
}

GateGradients sequence_gate_gradients(const SequenceBackwardArguments& arguments,
                                      bool reverse,
                                      std::array<bool, 2> state_mask) {
  const auto sizes = check<c10::SymInt>(arguments);
  const WithoutAutocast without_autocast;
  const Tensor& input = arguments.input;
  const Tensor& weights = arguments.weights;
  const int64_t steps = number_of(sizes.steps);
  const Rows rows(arguments.sequence(), steps, reverse);
  const auto dtype = input.scalar_type();
  const Tensor h_columns = columns(weights, 0, sizes.state_size);
  const Tensor h0 = state_or_zeros(arguments.h0, input, sizes);
  const Tensor z =
      at::linear(rows.h_and_input(arguments.output, h0, input), weights, arguments.bias);

  // The gradients of the state that is passed between two steps.
  Tensor dh = accumulated(state_or_zeros(arguments.grad_h_n, input, sizes));
  Tensor d_cell = accumulated(state_or_zeros(arguments.grad_c_n, input, sizes));
  std::vector<Tensor> dz_of_steps;
  for (int64_t k = steps - 1; k >= 0; --k) {
    const int64_t t = rows.time_of(k);
    const Tensor new_cell = rows.zero_unless_running(t, accumulated(arguments.cells.select(0, t)));
    const StepGradients gradients = step_backward(z.select(0, t),
                                                  new_cell,
                                                  rows.total(t, dh, arguments.grad_output),
                                                  rows.total(t, d_cell, arguments.grad_cells));
    const Tensor dz = rows.zero_unless_running(t, gradients.gates).to(dtype);
    if (k > 0 || state_mask[0]) {
      const Tensor d_old_h = accumulated(dz.matmul(h_columns));
      dh = rows.where_running(t, rows.zero_where_reset(t, d_old_h), dh);
    }
    d_cell = rows.where_running(t, rows.zero_where_reset(t, gradients.old_cell), d_cell);
    dz_of_steps.push_back(dz);
  }
  if (steps == 0) {
    dh = dh.clone();
    d_cell = d_cell.clone();
  }
  // The steps were visited in the reverse order of their execution.
  return {
      stacked(dz_of_steps, !reverse, input, {sizes.batch, sizes.state_size * 3}),
      if_wanted(state_mask[0], [&] { return dh.to(dtype); }),
      if_wanted(state_mask[1], [&] { return d_cell.to(final_cell_dtype(arguments.sequence())); })};
}

OptionalGradients finish_sequence_gradients(const GateGradients& gate_gradients,
                                            const SequenceBackwardArguments& arguments,
                                            bool reverse,
                                            std::array<bool, 5> output_mask) {
  const auto sizes = check<c10::SymInt>(arguments);
  const WithoutAutocast without_autocast;
  const Tensor& input = arguments.input;
  const Tensor& weights = arguments.weights;
  const Rows rows(arguments.sequence(), number_of(sizes.steps), reverse);
  const auto& [dz, d_h0, d_c0] = gate_gradients;
  return {
      if_wanted(output_mask[kInput],
                [&, &dz = dz] {
                  const c10::SymInt width = sizes.state_size + sizes.input_features;
                  const Tensor input_columns = columns(weights, sizes.state_size, width);
                  return rows.zero_unless_running(dz.matmul(input_columns));
                }),
      if_wanted(output_mask[kWeights],
                [&, &dz = dz] {
                  const Tensor h0 = state_or_zeros(arguments.h0, input, sizes);
                  const Tensor h_and_input = rows.h_and_input(arguments.output, h0, input);
                  return sum_of_products(dz, h_and_input);
                }),
      if_wanted(output_mask[kBias], [&dz = dz] { return dz.sum(at::IntArrayRef{0, 1}); }),
      d_h0,
      d_c0,
  };
}

OptionalGradients sequence_backward(const SequenceBackwardArguments& arguments,
                                    bool reverse,
                                    std::array<bool, 5> output_mask) {
  return finish_sequence_gradients(
      sequence_gate_gradients(arguments, reverse, {output_mask[kH0], output_mask[kC0]}),
      arguments,
      reverse,
      output_mask);
}

}  // namespace lltm::formula
