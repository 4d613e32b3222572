#include "tangents.h"

#include "../dispatch/optional_tensor.h"
#include "../dispatch/without_autocast.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros_like.h>

#include <vector>

namespace lltm::formula {
namespace {

/// The tangents of the arguments. Any may be undefined.
struct Tangents {
  const Tensor& input;
  Tensor weight_ih;  // with the rows of problem.h, as the next two
  Tensor weight_hh;
  Tensor bias;
  const Tensor& h0;
  const Tensor& c0;
};

std::array<Tensor, 4> tangents_of(const Problem& problem,
                                  const Tangents& tangents,
                                  const Tensor& output,
                                  const Tensor& cells) {
  const Rows& rows = problem.rows;
  const Tensor h_and_input = problem.h_and_input(output);
  const Tensor z = problem.z(h_and_input);

  Tensor z_tangent = at::zeros_like(accumulated(z));
  if (tangents.input.defined()) {
    z_tangent =
        z_tangent + rows.zero_unless_running(tangents.input).matmul(problem.input_weights().t());
  }
  if (tangents.weight_hh.defined()) {
    const Tensor old_h = rows.old_states(output, problem.h0);
    z_tangent = z_tangent + old_h.matmul(tangents.weight_hh.t());
  }
  if (tangents.weight_ih.defined()) {
    const Tensor input = rows.zero_unless_running(problem.input);
    z_tangent = z_tangent + input.matmul(tangents.weight_ih.t());
  }
  if (tangents.bias.defined()) {
    z_tangent = z_tangent + tangents.bias;
  }
  const auto initial = [&](const Tensor& tangent) {
    return accumulated(problem.state_or_zeros(if_defined(tangent)));
  };
  const auto steps = run_tangents(problem,
                                  *factors_of(problem, z, cells),
                                  z_tangent,
                                  initial(tangents.h0),
                                  initial(tangents.c0));
  return {steps.h.to(problem.dtype),
          steps.h_n.to(problem.dtype),
          steps.c_n.to(problem.cell_dtype),
          steps.cell.to(problem.dtype)};
}

}  // namespace

std::unique_ptr<Factors> factors_of(const Problem& problem, const Tensor& z, const Tensor& cells) {
  const Tensor old_cells = problem.cell.reads_old_cell
                               ? problem.rows.old_states(accumulated(cells), problem.c0)
                               : Tensor();
  return Factors::of(problem.cell, z, problem.rows.zero_unless_running(cells), old_cells);
}

StepTangents run_tangents(const Problem& problem,
                          const Factors& factors,
                          const Tensor& z_tangent,
                          Tensor h,
                          Tensor cell) {
  const Rows& rows = problem.rows;
  const Tensor h_weights = problem.h_weights();
  // unbind(), because the gradient of each select() would have the size of all steps.
  const auto z_at = z_tangent.unbind();
  const auto h_by_cell = factors.output_gate ? factors.h_by_cell.unbind() : std::vector<Tensor>();
  std::vector<std::vector<Tensor>> by_z;
  for (const Tensor& factor : factors.by_z) {
    by_z.push_back(factor.unbind());
  }
  const bool forgets = factors.cell_by_old.defined();
  const auto cell_by_old = forgets ? factors.cell_by_old.unbind() : std::vector<Tensor>();
  std::vector<Tensor> z_steps, old_h_steps, old_cell_steps, h_steps, cell_steps;
  for (int64_t k = 0; k < rows.steps(); ++k) {
    const int64_t t = rows.time_of(k);
    const auto old = [&](const Tensor& state) {
      return rows.zero_unless_running(t, rows.zero_where_reset(t, state));
    };
    const Tensor old_h = old(h), old_cell = old(cell);
    const Tensor product = accumulated(old_h.to(h_weights.scalar_type()).matmul(h_weights.t()));
    const Tensor z = rows.zero_unless_running(t, z_at[t] + product);
    const auto gates = z.chunk(static_cast<int64_t>(by_z.size()), /*dim=*/1);
    Tensor new_cell = forgets ? old_cell * cell_by_old[t] : old_cell;
    for (size_t gate = 0; gate < by_z.size(); ++gate) {
      if (gate != factors.output_gate) {
        new_cell = new_cell + gates[gate] * by_z[gate][t];
      }
    }
    Tensor new_h = new_cell;
    if (const auto o = factors.output_gate) {
      new_h = new_cell * h_by_cell[t] + gates[*o] * by_z[*o][t];
    }
    h = rows.where_running(t, new_h, h);
    cell = rows.where_running(t, new_cell, cell);
    z_steps.push_back(z);
    old_h_steps.push_back(old_h);
    old_cell_steps.push_back(old_cell);
    h_steps.push_back(rows.zero_unless_running(t, new_h));
    cell_steps.push_back(rows.zero_unless_running(t, new_cell));
  }
  if (rows.steps() == 0) {
    h = h.clone();  // not the caller's tensors
    cell = cell.clone();
  }
  const Tensor& like = factors.by_z[0];
  return {.z = rows.in_time(z_steps, z_tangent),
          .old_h = rows.in_time(old_h_steps, like),
          .old_cell = rows.in_time(old_cell_steps, like),
          .h = rows.in_time(h_steps, like),
          .cell = rows.in_time(cell_steps, like),
          .h_n = h,
          .c_n = cell};
}

std::array<Tensor, 4> tangents_of_sequence(const LltmSequenceArguments& arguments,
                                           bool reverse,
                                           const std::array<Tensor, 5>& tangents,
                                           const Tensor& output,
                                           const Tensor& cells) {
  auto sizes = check<c10::SymInt>(arguments);
  const WithoutAutocast without_autocast;
  const auto& [input, weights, bias, h0, c0] = tangents;
  const auto [weight_hh, weight_ih] = two_blocks(weights, sizes);
  return tangents_of(Problem(arguments, reverse, std::move(sizes)),
                     {input, weight_ih, weight_hh, bias, h0, c0},
                     output,
                     cells);
}

std::array<Tensor, 4> tangents_of_sequence(const LstmArguments& arguments,
                                           bool reverse,
                                           const std::array<Tensor, 6>& tangents,
                                           const Tensor& output,
                                           const Tensor& cells) {
  auto sizes = check<c10::SymInt>(arguments);
  const WithoutAutocast without_autocast;
  const auto& [input, weight_ih, weight_hh, bias, h0, c0] = tangents;
  return tangents_of(Problem(arguments, reverse, std::move(sizes)),
                     {input, weight_ih, weight_hh, bias, h0, c0},
                     output,
                     cells);
}

std::array<Tensor, 2> tangents_of_sequence(const GruArguments& arguments,
                                           bool reverse,
                                           const std::array<Tensor, 6>& tangents,
                                           const Tensor& output,
                                           const Tensor& cells) {
  auto sizes = check<c10::SymInt>(arguments);
  const WithoutAutocast without_autocast;
  const Problem problem(arguments, reverse, std::move(sizes));
  const auto& [of_gate, of_input, saved] =
      std::tie(problem.cell.of_gate, problem.cell.of_input, problem.cell.saved);
  const auto& [input, weight_ih, weight_hh, bias_ih, bias_hh, h0] = tangents;
  const auto found =
      tangents_of(problem,
                  {input,
                   to_saved(weight_ih, of_input, saved),
                   to_saved(weight_hh, of_gate, saved),
                   sum_of(to_saved(bias_ih, of_input, saved), to_saved(bias_hh, of_gate, saved)),
                   h0,
                   h0},
                  output,
                  cells);
  return {found[0], found[2]};
}

}  // namespace lltm::formula
