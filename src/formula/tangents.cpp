#include "tangents.h"

#include "../dispatch/optional_tensor.h"
#include "../dispatch/without_autocast.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <vector>

namespace lltm::formula {

Factors::Factors(const Tensor& z, const Tensor& cells) {
  const auto gates = accumulated(z).chunk(3, /*dim=*/2);
  i = at::sigmoid(gates[0]);
  o = at::sigmoid(gates[1]);
  g = at::elu(gates[2]);
  tanh_cell = at::tanh(accumulated(cells));
  // exp of a large z is infinite, and its gradient would be NaN. At z = 0, the second derivative is
  // 0, as that of at::elu.
  g_derivative = at::exp(at::where(gates[2].ge(0), 0, gates[2]));
  cell_by_i = g * i * complement(i);
  cell_by_g = i * g_derivative;
  h_by_o = tanh_cell * o * complement(o);
  h_by_cell = o * complement(tanh_cell * tanh_cell);
}

StepTangents run_tangents(const Rows& rows,
                          const Factors& factors,
                          const Tensor& of_z,
                          Tensor of_h,
                          Tensor of_cell,
                          const Tensor& h_columns) {
  // unbind(), because the gradient of each select() would have the size of all steps.
  const auto of_z_at = of_z.unbind(), by_i = factors.cell_by_i.unbind();
  const auto by_g = factors.cell_by_g.unbind(), by_o = factors.h_by_o.unbind();
  const auto by_cell = factors.h_by_cell.unbind();
  std::vector<Tensor> z_of_steps, old_h_of_steps, h_of_steps, cell_of_steps;
  for (int64_t k = 0; k < rows.steps(); ++k) {
    const int64_t t = rows.time_of(k);
    const auto old = [&](const Tensor& of_state) {
      return rows.zero_unless_running(t, rows.zero_where_reset(t, of_state));
    };
    const Tensor old_h = old(of_h);
    const Tensor product = accumulated(old_h.to(h_columns.scalar_type()).matmul(h_columns.t()));
    const Tensor z = rows.zero_unless_running(t, of_z_at[t] + product);
    const auto gates = z.chunk(3, /*dim=*/1);
    const Tensor cell = old(of_cell) + gates[0] * by_i[t] + gates[2] * by_g[t];
    const Tensor h = cell * by_cell[t] + gates[1] * by_o[t];
    of_h = rows.where_running(t, h, of_h);
    of_cell = rows.where_running(t, cell, of_cell);
    z_of_steps.push_back(z);
    old_h_of_steps.push_back(old_h);
    h_of_steps.push_back(rows.zero_unless_running(t, h));
    cell_of_steps.push_back(rows.zero_unless_running(t, cell));
  }
  if (rows.steps() == 0) {
    of_h = of_h.clone();  // not the caller's tensors
    of_cell = of_cell.clone();
  }
  const auto in_time = [&](const std::vector<Tensor>& of_steps, const Tensor& like) {
    return rows.in_time(of_steps, like);
  };
  return {in_time(z_of_steps, of_z),
          in_time(old_h_of_steps, factors.i),
          in_time(h_of_steps, factors.i),
          in_time(cell_of_steps, factors.i),
          of_h,
          of_cell};
}

std::array<Tensor, 4> tangents_of_sequence(const SequenceArguments& arguments,
                                           bool reverse,
                                           const std::array<Tensor, 5>& tangents,
                                           const Tensor& output,
                                           const Tensor& cells) {
  const auto sizes = check<c10::SymInt>(arguments);
  const WithoutAutocast without_autocast;
  const auto& [input, weights, bias, h0, c0, lengths, reset] = arguments;
  const auto& [of_input, of_weights, of_bias, of_h0, of_c0] = tangents;
  const Rows rows(arguments, number_of(sizes.steps), reverse);
  const c10::SymInt width = sizes.state_size + sizes.input_features;
  const Tensor h_and_input = rows.h_and_input(output, state_or_zeros(h0, input, sizes), input);
  const Tensor z = at::linear(h_and_input, weights, bias);

  Tensor of_z = at::zeros_like(accumulated(z));
  if (of_input.defined()) {
    of_z = of_z +
           rows.zero_unless_running(of_input).matmul(columns(weights, sizes.state_size, width).t());
  }
  if (of_weights.defined()) {
    of_z = of_z + h_and_input.matmul(of_weights.t());
  }
  if (of_bias.defined()) {
    of_z = of_z + of_bias;
  }
  const auto of_steps = run_tangents(rows,
                                     Factors(z, rows.zero_unless_running(cells)),
                                     of_z,
                                     accumulated(state_or_zeros(if_defined(of_h0), input, sizes)),
                                     accumulated(state_or_zeros(if_defined(of_c0), input, sizes)),
                                     columns(weights, 0, sizes.state_size));
  const auto dtype = input.scalar_type();
  return {of_steps.h.to(dtype),
          of_steps.h_n.to(dtype),
          of_steps.c_n.to(final_cell_dtype(arguments)),
          of_steps.cell.to(dtype)};
}

}  // namespace lltm::formula
