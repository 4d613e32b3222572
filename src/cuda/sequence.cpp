// The operators of a sequence on CUDA. They run in one kernel (recurrence.cpp), as a cell
// (one_step.cpp) or step by step: by products of the library and a pointwise kernel
// (library/sequence.cpp) or, where that is faster, by one of the forward's kernels (steps.cpp). The
// host knows only sizes, so a call can be captured in a graph.
#include "library/sequence.h"

#include "../dispatch/optional_tensor.h"
#include "../operators/checks.h"
#include "../operators/operators.h"
#include "../operators/outputs.h"
#include "input_product.h"
#include "one_step.h"
#include "plan/plan.h"
#include "recurrence.h"
#include "runtime/device.h"
#include "runtime/rows.h"
#include "steps.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lltm::cuda {
namespace {

using at::Tensor;

/// Where steps that multiply the input store everything.
StepsLayout layout_of(const SequenceOutputs& outputs,
                      const RecurrentArguments& arguments,
                      const SequenceSizes<int64_t>& sizes) {
  const Tensor& input = arguments.input;
  const auto size = static_cast<int>(input.element_size());
  StepsLayout of;
  of.size = size;
  of.steps = sizes.steps;
  of.batch = sizes.batch;
  of.gates = sizes.gates;
  of.input_features = sizes.input_features;
  of.state_size = sizes.state_size;
  of.choose_copies(is_describable(arguments.weight_hh),
                   is_describable(arguments.weight_ih),
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

SequenceShape shape_of(const SequenceOutputs& outputs,
                       const RecurrentArguments& arguments,
                       const SequenceSizes<int64_t>& sizes) {
  const Tensor& input = arguments.input;
  SequenceShape shape;
  shape.cell = arguments.cell.type;
  shape.arithmetic = arithmetic_of(input.scalar_type(), shape.cell);
  shape.steps = sizes.steps;
  shape.batch = sizes.batch;
  shape.input_features = sizes.input_features;
  shape.state_size = sizes.state_size;
  shape.launches = chunk_of_z_x(outputs, input, sizes).launches(sizes);
  shape.in_pairs = is_in_pairs(sizes);
  shape.input_in_pairs = input_is_in_pairs(input);
  shape.layout = layout_of(outputs, arguments, sizes);
  shape.copied_input_columns = copied_input_columns(input);
  shape.input = alignment_of(input);
  shape.weights = alignment_of(arguments.weight_hh);
  shape.weights_input = alignment_of(arguments.weight_ih);
  shape.one_step = one_step_shape(shape.arithmetic, outputs, arguments);
  return shape;
}

std::string describe(std::string_view kernel, int cluster, int64_t rows, bool x_inside) {
  return "kernel=" + std::string(kernel) + " cluster=" + std::to_string(cluster) +
         " rows=" + std::to_string(rows) + " x=" + (x_inside ? "inside" : "outside");
}

std::string describe(const Choice& choice, int64_t batch, bool x_inside) {
  const TileShape& tile = choice.candidate->tile;
  return describe(choice.candidate->name,
                  choice.estimate.ranks * std::max(tile.row_tiles, 1),
                  tile.rows > 0 ? tile.rows : batch,
                  x_inside);
}

std::string describe(const SequencePlan& plan,
                     const SequenceSizes<int64_t>& sizes,
                     const DeviceFacts& facts) {
  if (const Candidate* const of = plan.recurrence) {
    const int rows =
        plan.grid ? plan.grid->rows_of_team() : rows_of_group(of->recurrence, sizes.batch, facts);
    return describe(of->name, of->recurrence.cluster, rows, of->recurrence.x_inside);
  }
  if (plan.one_step.choice.candidate != nullptr) {
    return describe(plan.one_step.choice, sizes.batch, /*x_inside=*/true);
  }
  return plan.steps.by_library()
             ? describe("library", 1, sizes.batch, /*x_inside=*/false)
             : describe(plan.steps.kernel.choice, sizes.batch, !plan.steps.layout.hoists_input());
}

/// Whether the products of float32 may use TF32, and the setting in torch.backends that says so.
std::string describe_precision(const SequenceShape& shape) {
  if (!shape.arithmetic || !is_float(*shape.arithmetic)) {
    return "";
  }
  return std::string(shape.arithmetic == Arithmetic::kTf32 ? " tf32=on" : " tf32=off") +
         " setting=" + (shape.cell == CellType::kLltm ? "cuda.matmul" : "cudnn.rnn");
}

void run(const SequencePlan& plan,
         std::optional<Arithmetic> arithmetic,
         const SequenceOutputs& outputs,
         const RecurrentArguments& arguments,
         const SequenceSizes<int64_t>& sizes,
         const Device& device,
         bool reverse) {
  if (plan.recurrence != nullptr &&
      run_recurrence(plan, *arithmetic, outputs, arguments, sizes, device, reverse)) {
    return;
  }
  if (plan.one_step.choice.candidate != nullptr) {
    run_one_step(plan.one_step, outputs, arguments, device);
  } else if (plan.steps.by_library()) {
    library_sequence_out(outputs, arguments, sizes, arithmetic, device, reverse);
  } else {
    run_steps(plan.steps, outputs, arguments, device, reverse);
  }
}

/// The outputs, with room for a rounded h_n, which is a result only if another state is carried. Of
/// the result's dtype it is the result: both round the same numbers.
template <typename Empty>
SequenceOutputs with_rounded_h(SequenceOutputs outputs, const Empty& empty) {
  if (!outputs.h_n.defined()) {
    const auto dtype = outputs.output.scalar_type();
    const at::IntArrayRef shape = outputs.c_n.sizes();
    outputs.h_n = outputs.c_n.scalar_type() == dtype ? outputs.c_n : empty(shape, dtype);
    outputs.cells = empty({0, shape[0], shape[1]}, dtype);
  }
  return outputs;
}

template <typename Arguments>
auto sequence(const Arguments& arguments, bool reverse, bool keep) {
  const auto sizes = check<int64_t>(arguments);
  const Device device(arguments.input);
  const auto empty = [&](at::IntArrayRef shape, at::ScalarType dtype) {
    return device.empty(shape, dtype);
  };
  const SequenceOutputs outputs = empty_outputs(arguments, sizes, keep, empty);
  if (sizes.batch * sizes.state_size > 0) {
    const RecurrentArguments of = recurrent(arguments);
    const SequenceOutputs all = with_rounded_h(outputs, empty);
    const SequenceShape shape = shape_of(all, of, sizes);
    const SequencePlan plan = plan_sequence(device.facts(), shape);
    run(plan, shape.arithmetic, all, of, sizes, device, reverse);
  }
  return outputs.template results<Arguments>();
}

/// How sequence() would compute these arguments.
template <typename Arguments>
std::string plan_of_sequence(const Arguments& arguments, bool /*reverse*/, bool keep) {
  const auto sizes = check<int64_t>(arguments);
  const Device device(arguments.input);
  if (sizes.steps * sizes.batch * sizes.state_size == 0) {
    return describe("none", 0, 0, false);
  }
  const auto empty = [](at::IntArrayRef shape, at::ScalarType dtype) -> Tensor {
    return at::detail::empty_meta(shape, dtype);
  };
  const SequenceOutputs outputs =
      with_rounded_h(empty_outputs(arguments, sizes, keep, empty), empty);
  const DeviceFacts& facts = device.facts();
  const SequenceShape shape = shape_of(outputs, recurrent(arguments), sizes);
  return describe(plan_sequence(facts, shape), sizes, facts) + describe_precision(shape);
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CUDA, m) {
  for_each_cell([&]<typename Cell>() {
    using Op = typename Cell::Forward;
    Op::template implement<sequence<typename Op::Arguments>>(m);
    Cell::Plan::template implement<plan_of_sequence<typename Op::Arguments>>(m);
  });
}

}  // namespace lltm::cuda
