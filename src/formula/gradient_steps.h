// The steps of the backward recurrence, in ATen operations, from the last step that was run to the
// first.
#pragma once

#include "factors.h"
#include "problem.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace lltm::formula {

/// The gradients of the results of a sequence.
struct ResultGradients {
  const std::optional<Tensor>& output;
  const std::optional<Tensor>& h_n;
  const std::optional<Tensor>& c_n;
  const std::optional<Tensor>& cells;
};

template <typename BackwardArguments>
ResultGradients result_gradients(const BackwardArguments& arguments) {
  return {arguments.grad_output, arguments.grad_h_n, arguments.grad_c_n, arguments.grad_cells};
}

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
  const auto h_by_cell = factors.h_by_cell.unbind();
  const bool forgets = factors.cell_by_old.defined();
  const auto cell_by_old = forgets ? factors.cell_by_old.unbind() : std::vector<Tensor>();
  StepGradients steps{.h = {},
                      .cell = {},
                      .h0 = accumulated(problem.state_or_zeros(gradients.h_n)),
                      .c0 = accumulated(problem.state_or_zeros(gradients.c_n))};
  for (int64_t k = rows.steps() - 1; k >= 0; --k) {
    const int64_t t = rows.time_of(k);
    const auto carry = [&](const Tensor& d_old, Tensor& following) {
      following = rows.where_running(t, rows.zero_where_reset(t, d_old), following);
    };
    const Tensor d_h = rows.total(t, steps.h0, gradients.output);
    const Tensor d_cell = rows.total(t, steps.c0, gradients.cells) + d_h * h_by_cell[t];
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
  return steps;
}

}  // namespace lltm::formula
