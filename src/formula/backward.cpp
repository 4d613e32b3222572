#include "backward.h"

#include "../dispatch/optional_tensor.h"
#include "../dispatch/without_autocast.h"
#include "../operators/one_step.h"
#include "rows.h"
#include "tangents.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>

#include <vector>

namespace lltm::formula {

using at::Tensor;

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

  const Factors factors(z, rows.zero_unless_running(arguments.cells));
  const auto by_i = factors.cell_by_i.unbind(), by_g = factors.cell_by_g.unbind();
  const auto by_o = factors.h_by_o.unbind(), by_cell = factors.h_by_cell.unbind();

  // The gradients of the state that is passed between two steps.
  Tensor dh = accumulated(state_or_zeros(arguments.grad_h_n, input, sizes));
  Tensor d_cell = accumulated(state_or_zeros(arguments.grad_c_n, input, sizes));
  std::vector<Tensor> dz_of_steps;
  for (int64_t k = steps - 1; k >= 0; --k) {
    const int64_t t = rows.time_of(k);
    const Tensor d_h = rows.total(t, dh, arguments.grad_output);
    const Tensor d_total = rows.total(t, d_cell, arguments.grad_cells) + d_h * by_cell[t];
    const Tensor of_gates = at::cat({d_total * by_i[t], d_h * by_o[t], d_total * by_g[t]}, 1);
    const Tensor dz = rows.zero_unless_running(t, of_gates).to(dtype);
    if (k > 0 || state_mask[0]) {
      const Tensor d_old_h = accumulated(dz.matmul(h_columns));
      dh = rows.where_running(t, rows.zero_where_reset(t, d_old_h), dh);
    }
    d_cell = rows.where_running(t, rows.zero_where_reset(t, d_total), d_cell);
    dz_of_steps.push_back(dz);
  }
  if (steps == 0) {
    dh = dh.clone();
    d_cell = d_cell.clone();
  }
  return {
      rows.in_time_backward(dz_of_steps, z),
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

OptionalGradients backward(const BackwardArguments& arguments, std::array<bool, 5> output_mask) {
  check<c10::SymInt>(arguments);
  return gradients_of_one_step(arguments, [&](const SequenceBackwardArguments& of_sequence) {
    return sequence_backward(of_sequence, /*reverse=*/false, output_mask);
  });
}

}  // namespace lltm::formula
