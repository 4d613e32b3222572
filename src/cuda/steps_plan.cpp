#include "../dispatch/optional_tensor.h"
#include "input_product.h"
#include "plan/input_product.h"
#include "runtime/rows.h"
#include "steps.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>

namespace lltm::cuda {
namespace {

using at::Tensor;

// The size of the workspace, and the most of it that a chunk of input or of z_x takes. The rest is
// for copies of weights, up to StepOperands::kWeightsBytes, and for the state of the rows that are
// run at a time.
constexpr int64_t kWorkspaceBytes = 60 << 20, kChunkBytes = 16 << 20;

StepsLayout layout_of(const SequenceOutputs& outputs, const RecurrentArguments& arguments) {
  const Tensor& input = arguments.input;
  StepsLayout of;
  of.size = static_cast<int>(input.element_size());
  of.steps = input.size(0);
  of.batch = input.size(1);
  of.gates = arguments.weight_hh.size(0);
  of.input_features = input.size(2);
  of.state_size = outputs.h_n.size(1);
  const int size = of.size;
  of.choose_copies(is_describable(arguments.weight_hh),
                   is_describable(input) && input.stride(0) * size % 16 == 0);
  of.own_rows = is_given(arguments.lengths) || is_given(arguments.reset);
  const bool together = !of.own_rows;
  of.h.initial =
      together && of.whole_state() && is_given(arguments.h0) && is_describable(*arguments.h0);
  of.h.result = together && of.whole_state();
  of.h.buffers = of.steps > 1 && !of.h.result ? 2 : of.h.initial ? 0 : 1;
  of.cell.initial =
      together && is_given(arguments.c0) && arguments.c0->scalar_type() == at::kFloat &&
      has_rows(*arguments.c0) &&
      (of.state_size % 4 != 0 || rows_of(*arguments.c0).starts_at_neighbors(4, sizeof(float)));
  of.cell.result = of.h.result && size == 4 && outputs.cells.size(0) > 0;
  of.cell.buffers = outputs.c_n.scalar_type() == at::kFloat ? 0 : 1;
  of.last_step_writes_c_n = of.h.result && of.cell.buffers > 0 && outputs.cells.size(0) == 0;
  return of;
}

/// The same if z_x is computed before the steps.
StepsLayout layout_with_hoisted_input(StepsLayout of, const Tensor& input) {
  of.hoisted_row = of.gates + copied_input_columns(input);
  of.input_features = 0;
  of.copies_input = false;
  return of;
}

/// Plans the steps of a layout.
StepsPlan plan_layout(StepsLayout layout,
                      Arithmetic arithmetic,
                      const RecurrentArguments& arguments,
                      const DeviceFacts& facts) {
  if (layout.weights_bytes() > StepsLayout::kWeightsBytes) {
    layout.copies_weights = false;
  }
  StepsPlan plan{.layout = layout, .rows_at_a_time = layout.rows_at_a_time()};
  if (layout.steps > 0 && (layout.copies_weights || has_rows(arguments.weight_hh))) {
    const Matrix input = layout.input_features > 0 ? rows_of(arguments.input) : Matrix{};
    plan.kernel =
        plan_forward(facts,
                     arithmetic,
                     layout.problem(plan.rows_at_a_time, input, rows_of(arguments.weight_hh)),
                     /*is_step=*/true,
                     arguments.cell);
    plan.us = plan.kernel.choice.estimate.us;
  }
  return plan;
}

/// What z_x takes of a step.
double time_of_hoisted_input(const StepsPlan& plan,
                             Arithmetic arithmetic,
                             const RecurrentArguments& arguments,
                             const DeviceFacts& facts) {
  const StepsLayout& of = plan.layout;
  const int64_t steps = of.steps_a_chunk(plan.rows_at_a_time);
  const InputProductPlan product = plan_input_product({.arithmetic = arithmetic,
                                                       .rows = steps * plan.rows_at_a_time,
                                                       .input_features = arguments.input.size(2),
                                                       .state_size = of.state_size,
                                                       .columns = of.gates},
                                                      facts);
  return product.us / static_cast<double>(steps) *
         static_cast<double>(ceil_div(of.batch, plan.rows_at_a_time));
}

}  // namespace

int64_t StepsLayout::chunk_bytes() const {
  return chunk_row() > 0 ? std::min((kWorkspaceBytes - weights_bytes()) / 3, kChunkBytes) : 0;
}

int64_t StepsLayout::steps_a_chunk(int64_t rows) const {
  return std::clamp<int64_t>(
      chunk_bytes() / (rows * chunk_row() * size), 1, std::max<int64_t>(steps, 1));
}

int64_t StepsLayout::rows_at_a_time() const {
  const int64_t state_bytes = h.buffers * h_stride() * size +
                              cell.buffers * state_size * static_cast<int64_t>(sizeof(float));
  int64_t rows = batch;
  if (state_bytes > 0) {
    rows = std::min(rows, (kWorkspaceBytes - weights_bytes() - chunk_bytes()) / state_bytes);
  }
  if (chunk_row() > 0) {
    rows = std::min(rows, chunk_bytes() / (chunk_row() * size));
  }
  return std::max<int64_t>(rows, 1);
}

StepsPlan plan_steps(const SequenceOutputs& outputs,
                     const RecurrentArguments& arguments,
                     const DeviceFacts& facts) {
  constexpr double kMargin = 1.1;  // the estimates are that uncertain
  const std::optional<Arithmetic> arithmetic = arithmetic_of(arguments.input.scalar_type());
  const StepsLayout layout = layout_of(outputs, arguments);
  if (!arithmetic) {
    selection();  // an unknown selection is an error for every dtype
    return {layout};
  }
  const auto with_hoisted_input = [&] {
    StepsPlan plan = plan_layout(
        layout_with_hoisted_input(layout, arguments.input), *arithmetic, arguments, facts);
    plan.us += time_of_hoisted_input(plan, *arithmetic, arguments, facts);
    return plan;
  };
  if (arguments.cell == CellType::kLstm) {
    return with_hoisted_input();
  }
  const StepsPlan plan = plan_layout(layout, *arithmetic, arguments, facts);
  if (layout.input_features == 0) {
    return plan;
  }
  const StepsPlan hoisted = with_hoisted_input();
  const double us = plan.by_library() ? kSlowStep : plan.us;
  return !hoisted.by_library() && kMargin * hoisted.us < us ? hoisted : plan;
}

}  // namespace lltm::cuda
