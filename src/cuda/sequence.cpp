// lltm::sequence and lltm::lstm on CUDA. They run in one kernel (recurrence.cpp) or step by step:
// by products of the library and a pointwise kernel (library/sequence.cpp) or, where that is
// faster, by one of the forward's kernels (steps.cpp). The host knows only sizes, so a call can be
// captured in a graph.
#include "library/sequence.h"

#include "../operators/checks.h"
#include "../operators/operators.h"
#include "../operators/outputs.h"
#include "plan/plan.h"
#include "recurrence.h"
#include "runtime/device.h"
#include "steps.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

namespace lltm::cuda {
namespace {

using at::Tensor;

/// How a sequence is computed: by one kernel for all steps or, if that is null, step by step.
struct SequencePlan {
  const RecurrenceCandidate* recurrence;
  StepsPlan steps;
};

SequencePlan plan_sequence(const SequenceOutputs& outputs,
                           const RecurrentArguments& arguments,
                           const SequenceSizes<int64_t>& sizes,
                           const DeviceFacts& facts) {
  const Tensor& input = arguments.input;
  const int64_t at_once = steps_of_z_x(outputs, input, sizes);
  const RecurrenceShape shape{.cell = arguments.cell,
                              .arithmetic = arithmetic_of(input.scalar_type()),
                              .steps = sizes.steps,
                              .rows = sizes.batch,
                              .input_features = sizes.input_features,
                              .state_size = sizes.state_size,
                              .backward = false,
                              .launches = at_once == 0 ? 0 : ceil_div(sizes.steps, at_once),
                              .in_pairs = is_in_pairs(sizes),
                              .input_in_pairs = input_is_in_pairs(input)};
  const StepsPlan steps = plan_steps(outputs, arguments, facts);
  return {plan_recurrence(facts, shape, static_cast<double>(sizes.steps) * steps.us), steps};
}

std::string describe(std::string_view kernel, int cluster, int64_t rows, bool x_inside) {
  return "kernel=" + std::string(kernel) + " cluster=" + std::to_string(cluster) +
         " rows=" + std::to_string(rows) + " x=" + (x_inside ? "inside" : "outside");
}

std::string describe(const SequencePlan& plan,
                     const SequenceSizes<int64_t>& sizes,
                     const DeviceFacts& facts) {
  if (const RecurrenceCandidate* const of = plan.recurrence) {
    const int rows = rows_of_group(of->tile, sizes.batch, facts);
    return describe(of->name, of->tile.cluster, rows, of->tile.x_inside);
  }
  if (plan.steps.by_library()) {
    return describe("library", 1, sizes.batch, /*x_inside=*/false);
  }
  const auto& [candidate, estimate] = plan.steps.kernel.choice;
  const TileShape& tile = candidate->tile;
  return describe(candidate->name,
                  estimate.ranks * std::max(tile.row_tiles, 1),
                  tile.rows > 0 ? tile.rows : sizes.batch,
                  /*x_inside=*/!plan.steps.layout.hoists_input());
}

void run(const SequencePlan& plan,
         const SequenceOutputs& outputs,
         const RecurrentArguments& arguments,
         const SequenceSizes<int64_t>& sizes,
         const Device& device,
         bool reverse) {
  if (plan.recurrence != nullptr) {
    run_recurrence(*plan.recurrence, outputs, arguments, sizes, device, reverse);
  } else if (plan.steps.by_library()) {
    library_sequence_out(outputs, arguments, sizes, device, reverse);
  } else {
    run_steps(plan.steps, outputs, arguments, device, reverse);
  }
}

template <typename Arguments>
SequenceResults sequence(const Arguments& arguments, bool reverse, bool keep) {
  const auto sizes = check<int64_t>(arguments);
  const Device device(arguments.input);
  const SequenceOutputs outputs =
      empty_outputs(arguments, sizes, keep, [&](at::IntArrayRef shape, at::ScalarType dtype) {
        return device.empty(shape, dtype);
      });
  if (sizes.batch * sizes.state_size > 0) {
    const RecurrentArguments of = recurrent(arguments);
    run(plan_sequence(outputs, of, sizes, device.facts()), outputs, of, sizes, device, reverse);
  }
  return outputs.results();
}

/// How sequence() would compute these arguments.
template <typename Arguments>
std::string plan_of_sequence(const Arguments& arguments, bool /*reverse*/, bool keep) {
  const auto sizes = check<int64_t>(arguments);
  const Device device(arguments.input);
  if (sizes.steps * sizes.batch * sizes.state_size == 0) {
    return describe("none", 0, 0, false);
  }
  const SequenceOutputs outputs =
      empty_outputs(arguments, sizes, keep, [](at::IntArrayRef shape, at::ScalarType dtype) {
        return at::detail::empty_meta(shape, dtype);
      });
  const DeviceFacts facts = device.facts();
  return describe(plan_sequence(outputs, recurrent(arguments), sizes, facts), sizes, facts);
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CUDA, m) {
  m.impl("sequence", op::Sequence::kernel<sequence<SequenceArguments>>());
  m.impl("lstm", op::Lstm::kernel<sequence<LstmArguments>>());
  m.impl("sequence_plan", op::SequencePlan::kernel<plan_of_sequence<SequenceArguments>>());
  m.impl("lstm_plan", op::LstmPlan::kernel<plan_of_sequence<LstmArguments>>());
}

}  // namespace lltm::cuda
