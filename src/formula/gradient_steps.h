// The steps of the backward recurrence, in ATen operations, from the last step that was run to the
// first.
#pragma once

#include "factors.h"
#include "problem.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lltm::formula {

/// In the accumulation type.
struct StepGradients {
  std::vector<Tensor> h;     // of every step, in the order of the loop
  std::vector<Tensor> cell;  // of new_cell, including what the gradient of h adds to it
  Tensor h0;
  Tensor c0;
};

/// Runs all steps. old_h_gradient(t, d_h, d_cell) returns the gradient of the h that step t started
/// from, or an undefined tensor if it is not needed.
template <typename OldHGradient>
StepGradients run_gradients(const Problem& problem,
                            const Factors& factors,
                            const ResultGradients& gradients,
                            const OldHGradient& old_h_gradient) {
  const Rows& rows = problem.rows;
  const bool has_output_gate = factors.output_gate.has_value();
  const auto h_by_cell = has_output_gate ? factors.h_by_cell.unbind() : std::vector<Tensor>();
  const bool forgets = factors.cell_by_old.defined();
  const auto cell_by_old = forgets ? factors.cell_by_old.unbind() : std::vector<Tensor>();
  StepGradients steps{.h = {},
                      .cell = {},
                      .h0 = accumulated(problem.state_or_zeros(gradients.grad_h_n)),
                      .c0 = accumulated(problem.state_or_zeros(gradients.grad_c_n))};
  for (int64_t k = rows.steps() - 1; k >= 0; --k) {
    const int64_t t = rows.time_of(k);
    const auto carry = [&](const Tensor& d_old, Tensor& following) {
      following = rows.where_running(t, rows.zero_where_reset(t, d_old), following);
    };
    const Tensor d_h = rows.total(t, steps.h0, gradients.grad_output);
    const Tensor d_cell = rows.total(t, steps.c0, gradients.grad_cells) +
                          (has_output_gate ? d_h * h_by_cell[t] : d_h);
    if (const Tensor d_old_h = old_h_gradient(t, d_h, d_cell); d_old_h.defined()) {
      carry(d_old_h, steps.h0);
    }
    carry(forgets ? d_cell * cell_by_old[t] : d_cell, steps.c0);
    steps.h.push_back(d_h);
    steps.cell.push_back(d_cell);
  }
  if (rows.steps() == 0) {
    steps.h0 = steps.h0.clone();  // not the caller's tensors
    steps.c0 = steps.c0.clone();
  }
  if (problem.cell.carries_h) {
    steps.c0 = steps.c0 + steps.h0;
  }
  return steps;
}

}  // namespace lltm::formula
