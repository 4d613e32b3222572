#include "sequence.h"

#include <algorithm>

namespace lltm::cuda {
namespace {

// The size of the workspace, and the most of it that a chunk of input or of z_x takes. The rest is
// for copies of weights, up to StepOperands::kWeightsBytes, and for the state of the rows that are
// run at a time.
constexpr int64_t kWorkspaceBytes = 60 << 20, kChunkBytes = 16 << 20;

// Microseconds of a small kernel of PyTorch's or of this library's that does not overlap others,
// bytes per microsecond of copies of weights, and what the first step takes longer, which overlaps
// none. A backward by steps has four such kernels: two before the steps, and two that add d_bias.
// Measured on an H200.
constexpr double kSmallKernel = 2.2, kCopyRate = 2e6, kFirstStep = 1.5;
constexpr double kBackwardStart = kFirstStep + 4 * kSmallKernel;

/// What a forward by steps takes beside them: the initial states, copies and, in 16 bits, c_n.
double start_of(const StepsLayout& of) {
  const bool copies_c_n = of.cell.buffers > 0 && !of.last_step_writes_c_n;
  const int kernels =
      of.has_start() + of.copies_weights + of.copies_weights_input + of.copies_input + copies_c_n;
  return kFirstStep + kSmallKernel * kernels +
         2 * static_cast<double>(of.weights_bytes()) / kCopyRate;
}

/// Plans the steps of a layout that multiply the input, or that read z_x. They have no kernel if
/// the copies of weights are too large.
StepsPlan plan_layout(const StepsLayout& layout,
                      const SequenceShape& shape,
                      const DeviceFacts& device,
                      const Selection& selection) {
  StepsPlan plan{.layout = layout, .rows_at_a_time = layout.rows_at_a_time()};
  if (layout.steps > 0 && layout.weights_bytes() <= StepsLayout::kWeightsBytes) {
    const Matrix input = layout.input_features > 0 ? shape.input : Matrix{};
    const ForwardProblem step =
        layout.problem(plan.rows_at_a_time, input, shape.weights, shape.weights_input);
    plan.kernel = choose_forward(
        forward_shape(*shape.arithmetic, step, /*is_step=*/true, shape.cell), device, selection);
    plan.us = plan.kernel.choice.estimate.us * plan.parts();
    // In 16 bits a single step rounds less than a recurrence, whose z_x is rounded.
    plan.start_us = layout.steps > 1 ? start_of(layout) : 0;
  }
  return plan;
}

/// The same if z_x is computed before the steps.
StepsPlan plan_with_hoisted_input(const SequenceShape& shape,
                                  const DeviceFacts& device,
                                  const Selection& selection) {
  StepsLayout layout = shape.layout;
  layout.hoisted_row = layout.gates + shape.copied_input_columns;
  layout.input_features = 0;
  layout.copies_weights_input = layout.copies_input = false;
  StepsPlan plan = plan_layout(layout, shape, device, selection);
  const int64_t rows = plan.rows_at_a_time, steps = plan.layout.steps_a_chunk(rows);
  Shape product = shape;
  product.batch = steps * rows;
  plan.us += plan_input_product(product, device).us / static_cast<double>(steps) * plan.parts();
  return plan;
}

StepsPlan plan_steps(const SequenceShape& shape,
                     const DeviceFacts& device,
                     const Selection& selection) {
  constexpr double kMargin = 1.1;  // the estimates are that uncertain
  if (!shape.arithmetic) {
    return {shape.layout};
  }
  // Without input, a GRU's z_x are its biases.
  if (shape.input_features == 0) {
    return shape.cell == CellType::kGru ? plan_with_hoisted_input(shape, device, selection)
                                        : plan_layout(shape.layout, shape, device, selection);
  }
  const StepsPlan plan = plan_layout(shape.layout, shape, device, selection);
  const StepsPlan hoisted = plan_with_hoisted_input(shape, device, selection);
  // The estimate of the library's step is one of an LLTM: of others it computes z_x before.
  if (plan.kernel.choice.candidate == nullptr ||
      (plan.by_library() && shape.cell != CellType::kLltm)) {
    return hoisted;
  }
  const double us = plan.by_library() ? kSlowStep * static_cast<double>(shape.steps) : plan.time();
  // The library only in place of a few rows whose weights come from memory twice as often.
  const bool may_hoist =
      !hoisted.by_library() ||
      (shape.cell != CellType::kLltm && plan.kernel.choice.candidate->group == Group::kFewRows);
  return may_hoist && kMargin * hoisted.time() < us ? hoisted : plan;
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

SequencePlan choose_sequence(const SequenceShape& shape,
                             const DeviceFacts& device,
                             const Selection& selection) {
  SequencePlan plan;
  double us = 0;  // of all steps
  if (shape.backward) {
    plan.gradients = choose(shape.step_backward(), device, selection);
    // That of one step has kernels of its own.
    us = static_cast<double>(shape.steps) * plan.gradients.estimate.us +
         (shape.steps > 1 ? kBackwardStart : 0);
  } else {
    if (shape.one_step) {
      const ForwardPlan one_step = choose_forward(*shape.one_step, device, selection);
      plan.one_step = one_step.by_library() ? ForwardPlan{} : one_step;
    }
    const bool as_cell = plan.one_step.choice.candidate != nullptr;
    plan.steps = as_cell ? StepsPlan{} : plan_steps(shape, device, selection);
    us = as_cell ? plan.one_step.choice.estimate.us : plan.steps.time();
  }
  plan.recurrence = choose_recurrence(shape, device, selection, us);
  if (plan.recurrence != nullptr && plan.recurrence->group == Group::kGrid) {
    plan.grid = plan_grid(shape, device);
  }
  return plan;
}

}  // namespace lltm::cuda
