// The backward operators of a sequence on CUDA.
//
// d_gates of all steps are computed by one kernel (recurrence.cpp) or step by step
// (steps_backward.cpp), and then what is a sum over all steps (gradient_products.cpp).
#include "../dispatch/without_autocast.h"
#include "../operators/operators.h"
#include "../operators/recurrent_gradients.h"
#include "gradient_products.h"
#include "one_step.h"
#include "packed_rows.h"
#include "plan/plan.h"
#include "recurrence.h"
#include "runtime/device.h"
#include "steps.h"

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace lltm::cuda {
namespace {

using at::Tensor;

SequenceShape shape_of(const RecurrentBackwardArguments& arguments,
                       const SequenceSizes<int64_t>& sizes) {
  SequenceShape shape;
  shape.cell = arguments.sequence.cell.type;
  shape.arithmetic = arithmetic_of(arguments.output.scalar_type(), shape.cell);
  shape.steps = sizes.steps;
  shape.batch = sizes.batch;
  shape.input_features = sizes.input_features;
  shape.state_size = sizes.state_size;
  shape.backward = true;
  shape.in_pairs = is_in_pairs(arguments, sizes);
  return shape;
}

/// Whether LLTM_CUDA_PATH selects the recurrence of a plan.
bool forces_recurrence(const SequencePlan& plan) {
  if (plan.recurrence == nullptr) {
    return false;
  }
  const Selection selected = selection();
  return selected.name == plan.recurrence->name ||
         (selected.group && runs_all_steps(*selected.group));
}

void run(const RecurrentGradients& gradients,
         const RecurrentBackwardArguments& arguments,
         const SequenceSizes<int64_t>& sizes,
         const Device& device,
         bool reverse) {
  const WithoutAutocast without_autocast;
  const CellDescriptor& cell = arguments.sequence.cell;
  const int64_t rows = sizes.steps * sizes.batch, saved = sizes.state_size * cell.saved;
  const DeviceFacts& facts = device.facts();
  const SequenceShape shape = shape_of(arguments, sizes);
  const SequencePlan plan = plan_sequence(facts, shape);
  Shape products = shape;
  products.batch = rows;
  const bool small_products = are_small_gradient_products(products);
  if (is_one_step(arguments, gradients) && !forces_recurrence(plan)) {
    const Choice choice = plan_one_step_backward(shape.arithmetic, arguments, facts);
    // A recurrence and small products are two launches.
    if (choice.candidate->group == Group::kFewRows || plan.recurrence == nullptr ||
        !small_products) {
      run_one_step_backward(choice, shape.arithmetic, gradients, arguments, device, facts);
      return;
    }
  }
  const Tensor d_gates = rows_of_vectors(rows, saved, arguments.output.scalar_type(), device);
  std::optional<Tensor> bias_parts;  // of a recurrence
  if (plan.recurrence != nullptr) {
    bias_parts = run_recurrence_backward(
        plan, *shape.arithmetic, d_gates, gradients, arguments, device, reverse);
  }
  const bool of_recurrence = bias_parts.has_value();
  if (!of_recurrence) {
    run_steps_backward(
        plan.gradients, shape.arithmetic, d_gates, gradients, arguments, device, reverse);
  }
  if (gradients.gates.defined()) {
    gradients.gates.view({rows, saved}).copy_(d_gates);
  }
  if (of_recurrence && small_products) {
    compute_small_gradient_products(
        d_gates, *bias_parts, gradients, arguments, device, facts, reverse);
    return;
  }
  if (gradients.bias.defined() || gradients.bias_hh.defined()) {
    compute_bias_gradients(
        gradients, of_recurrence ? *bias_parts : d_gates, cell.type, sizes.state_size, device);
  }
  compute_gradient_products(
      d_gates, shape.arithmetic, gradients, /*d_h0=*/{}, arguments, device, facts, reverse);
}

auto empty_on(const Device& device) {
  return
      [&device](at::IntArrayRef shape, at::ScalarType dtype) { return device.empty(shape, dtype); };
}
auto compute_on(const Device& device, const SequenceSizes<int64_t>& sizes, bool reverse) {
  return [&device, &sizes, reverse](const RecurrentGradients& gradients,
                                    const RecurrentBackwardArguments& arguments) {
    run(gradients, arguments, sizes, device, reverse);
  };
}

template <typename Arguments, size_t count>
auto sequence_backward(const Arguments& arguments,
                       bool reverse,
                       std::array<bool, count> output_mask) {
  const auto sizes = check<int64_t>(arguments);
  const Device device(arguments.sequence.input);
  return gradients_of_sequence(
      arguments, sizes, output_mask, empty_on(device), compute_on(device, sizes, reverse));
}

/// The gradients of the gates and the state, without any product over all steps.
template <typename Arguments, size_t states>
GateGradientsOf<states> gradients_of_gates(const Arguments& arguments,
                                           bool reverse,
                                           std::array<bool, states> state_mask) {
  const auto sizes = check<int64_t>(arguments);
  const Device device(arguments.sequence.input);
  return gate_gradients_of_sequence(
      arguments, sizes, state_mask, empty_on(device), compute_on(device, sizes, reverse));
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CUDA, m) {
  for_each_cell([&]<typename Cell>() {
    using Backward = typename Cell::Backward;
    using GateGradients = typename Cell::GateGradients;
    Backward::template implement<sequence_backward<typename Backward::Arguments>>(m);
    GateGradients::template implement<gradients_of_gates<typename GateGradients::Arguments>>(m);
  });
}

}  // namespace lltm::cuda
