// lltm::sequence and lltm::lstm on CUDA. They run in one kernel (recurrence.cpp) or step by step:
// by products of the library and a pointwise kernel (library/sequence.cpp) or, where that is
// faster, by one of the forward's kernels (plan.h) with the epilogue of a step. The host knows only
// sizes, so a call can be captured in a graph.
//
// A kernel computes both halves of a step's product, [h | x], and reads h where the previous step
// left it: in output or, where rows are reset, have lengths of their own or do not start at
// multiples of 16 bytes, in two buffers that alternate. The cell state is carried in float: in
// cells or c_n where these are float, otherwise in a buffer. Weights and input that do not start at
// multiples of 16 bytes are copied to rows that every kernel can read in vectors: weights once per
// call, input in chunks of steps. Where that is faster, as it is if L2 has room for the weights of
// h alone, z_x, the product with the inputs, is computed before, in chunks of steps, and the
// kernels multiply h alone.
#include "sequence.h"

#include "../dispatch/optional_tensor.h"
#include "../operators/checks.h"
#include "../operators/operators.h"
#include "../operators/outputs.h"
#include "input_product.h"
#include "launch_forward.h"
#include "library/sequence.h"
#include "plan/input_product.h"
#include "plan/plan.h"
#include "recurrence.h"
#include "runtime/device.h"
#include "runtime/launch_check.h"
#include "runtime/rows.h"

#include <ATen/Dispatch.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace lltm::cuda {
namespace {

using at::Tensor;

// The size of the workspace, and the most of it that a chunk of input or of z_x takes. The rest is
// for copies of weights, up to StepOperands::kWeightsBytes, and for the state of the rows that are
// run at a time.
constexpr int64_t kWorkspaceBytes = 60 << 20, kChunkBytes = 16 << 20;

// Microseconds of a step that no model estimates.
constexpr double kSlowStep = 20;

/// What carries a state from step to step. It depends only on sizes and strides.
struct CarriedBy {
  bool initial = false;  // the first step reads h0 or c0 in place
  bool result = false;   // the others read what the step before kept: output or cells
  int64_t buffers = 0;   // for the rest; two alternate
};

/// Where everything is stored. It depends only on sizes and strides.
struct Layout : StepOperands {
  int64_t steps = 0, batch = 0;
  // Whether rows have lengths or resets of their own. Otherwise all run, starting and ending
  // together.
  bool own_rows = false;
  CarriedBy h, cell;  // the cell state in float, in c_n where that is float
  // Elements of a row of z_x, in the operands' type, and of a copy of the input. Zero: the steps
  // multiply the input.
  int64_t hoisted_row = 0;

  bool hoists_input() const { return hoisted_row > 0; }
  bool has_start() const { return own_rows || !h.initial || !cell.initial; }
  int64_t chunk_bytes() const {
    return copies_input || hoists_input()
               ? std::min((kWorkspaceBytes - weights_bytes()) / 3, kChunkBytes)
               : 0;
  }
  int64_t steps_a_chunk(int64_t bytes_a_step) const {
    return std::clamp<int64_t>(chunk_bytes() / bytes_a_step, 1, std::max<int64_t>(steps, 1));
  }

  /// The number of rows whose part of the workspace fits its share.
  int64_t rows_at_a_time() const {
    const int64_t state_bytes = h.buffers * h_stride() * size +
                                cell.buffers * state_size * static_cast<int64_t>(sizeof(float));
    int64_t rows = batch;
    if (state_bytes > 0) {
      rows = std::min(rows, (kWorkspaceBytes - weights_bytes() - chunk_bytes()) / state_bytes);
    }
    if (copies_input) {
      rows = std::min(rows, chunk_bytes() / (input_stride() * size));
    }
    if (hoists_input()) {
      rows = std::min(rows, chunk_bytes() / (hoisted_row * size));
    }
    return std::max<int64_t>(rows, 1);
  }
};

Layout layout_of(const SequenceOutputs& outputs, const RecurrentArguments& arguments) {
  const Tensor& input = arguments.input;
  Layout of;
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
  return of;
}

/// The same if z_x is computed before the steps.
Layout layout_with_hoisted_input(Layout of, const Tensor& input) {
  of.hoisted_row = of.gates + copied_input_columns(input);
  of.input_features = 0;
  of.copies_input = false;
  return of;
}

/// How the steps are run.
struct StepsPlan {
  Layout layout;
  int64_t rows_at_a_time = 0;
  ForwardPlan kernel{};   // without a candidate where there are no kernels
  double us = kSlowStep;  // of a step, with its part of z_x

  /// Whether the library computes the products: in float64, on GPUs older than sm_80, without
  /// steps, and for sizes at which it is faster.
  bool by_library() const { return kernel.choice.candidate == nullptr || kernel.by_library(); }
};

/// Plans the steps of a layout.
StepsPlan plan_layout(Layout layout,
                      Arithmetic arithmetic,
                      const RecurrentArguments& arguments,
                      const DeviceFacts& facts) {
  if (layout.weights_bytes() > Layout::kWeightsBytes) {
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
  const Layout& of = plan.layout;
  const int64_t steps = of.steps_a_chunk(plan.rows_at_a_time * of.hoisted_row * of.size);
  const InputProductPlan product = plan_input_product({.arithmetic = arithmetic,
                                                       .rows = steps * plan.rows_at_a_time,
                                                       .input_features = arguments.input.size(2),
                                                       .state_size = of.state_size,
                                                       .columns = of.gates},
                                                      facts);
  return product.us / static_cast<double>(steps) *
         static_cast<double>(ceil_div(of.batch, plan.rows_at_a_time));
}

/// The steps multiply the input themselves, unless it takes clearly less to compute z_x before.
/// Those of the LSTM, whose weights are two matrices, never do.
StepsPlan plan_steps(const SequenceOutputs& outputs,
                     const RecurrentArguments& arguments,
                     const DeviceFacts& facts) {
  constexpr double kMargin = 1.1;  // the estimates are that uncertain
  const std::optional<Arithmetic> arithmetic = arithmetic_of(arguments.input.scalar_type());
  const Layout layout = layout_of(outputs, arguments);
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

/// The address of (t, row) in a contiguous tensor of steps, or null if the tensor is empty.
void* kept_at(const Tensor& kept, int64_t t, int64_t row) {
  return kept.size(0) > 0 ? static_cast<char*>(kept.mutable_data_ptr()) +
                                (t * kept.size(1) + row) * kept.size(2) * kept.element_size()
                          : nullptr;
}

Matrix rows_from(const Tensor& matrix, int64_t first) {
  return rows_of(matrix).from(first * matrix.stride(0), static_cast<int>(matrix.element_size()));
}

/// The state that steps leave to each other. A matrix has rows of some rows of the batch.
struct Carried {
  CarriedBy by;
  Matrix initial;        // h0 or c0, if the first step reads it in place
  const Tensor& result;  // output or cells
  Matrix buffers[2];     // may be the same
  int64_t first_row;     // of the rows, in the batch
  int64_t state_size;

  /// What step k starts from; the one before it ran at previous_t.
  Matrix before(int64_t k, int64_t previous_t) const {
    return k == 0 && by.initial ? initial
           : k > 0 && by.result ? Matrix{kept_at(result, previous_t, first_row), state_size}
                                : buffers[k % 2];
  }
  /// Where step k leaves it to the next one; null data if only in the result.
  Matrix after(int64_t k) const { return by.result ? Matrix{} : buffers[(k + 1) % 2]; }
};

/// Runs the steps one by one, by the kernel of a plan.
class StepsOfSequence {
 public:
  StepsOfSequence(const SequenceOutputs& outputs,
                  const RecurrentArguments& arguments,
                  const StepsPlan& plan,
                  const Device& device,
                  bool reverse)
      : outputs_(outputs), arguments_(arguments), device_(device), reverse_(reverse), plan_(plan) {}

  void run() {
    with_scalar(arguments_.input.scalar_type(), [&]<typename scalar_t>() { run<scalar_t>(); });
  }

 private:
  template <typename scalar_t>
  void run() {
    copy_weights();
    copy_bias();
    for (int64_t first = 0; first < layout_.batch; first += plan_.rows_at_a_time) {
      run_rows<scalar_t>(first, std::min(plan_.rows_at_a_time, layout_.batch - first));
    }
  }

  /// Whether the kernel reads h in vectors that go on in the gap behind the columns of the state,
  /// where both operands must be zeros.
  bool multiplies_gap() const {
    return plan_.kernel.choice.candidate->group == Group::kFewRows && layout_.weights_gap() > 0;
  }

  void copy_weights() {
    const Tensor& weight_hh = arguments_.weight_hh;
    if (!layout_.copies_weights) {
      return;
    }
    weights_ = device_.empty({layout_.gates, layout_.weights_stride()}, weight_hh.scalar_type());
    weights_.narrow(1, 0, layout_.state_size).copy_(weight_hh);
    if (multiplies_gap()) {
      weights_.narrow(1, layout_.state_size, layout_.weights_gap()).zero_();
    }
    if (layout_.input_features > 0) {
      weights_.narrow(1, layout_.state_size + layout_.weights_gap(), layout_.input_features)
          .copy_(arguments_.weight_ih);
    }
  }

  void copy_bias() {
    bias_ = contiguous_or_undefined(arguments_.bias);
    if (bias_.defined() &&
        !Matrix{bias_.const_data_ptr(), 0}.starts_at_neighbors(4, layout_.size)) {
      bias_ = bias_.clone();
    }
  }

  int64_t time_of(int64_t k) const { return reverse_ ? layout_.steps - 1 - k : k; }

  /// Writes the state that `count` rows start from, except what is read in place.
  template <typename scalar_t>
  void start_rows(int64_t count, const Carried& h, const Carried& cell) {
    const int64_t first = h.first_row;
    const auto state_of = [&]<typename T>(const std::optional<Tensor>& initial, T) {
      return is_given(initial) && initial->scalar_type() == c10::CppTypeToScalarType<T>::value
                 ? steps_of<T>(initial->narrow(0, first, count))
                 : Steps<T>{};
    };
    const auto written = [&]<typename T>(const Carried& to, int64_t i, T) {
      return to.by.initial ? nullptr : static_cast<T*>(const_cast<void*>(to.buffers[i].data));
    };
    const SequenceStartParams<scalar_t> start{
        .rows = count,
        .state_size = layout_.state_size,
        .steps = layout_.steps,
        .reverse = reverse_,
        .rows_of_sequence = rows_of_sequence(arguments_.lengths, arguments_.reset, first),
        .h0 = state_of(arguments_.h0, scalar_t{}),
        .c0 = state_of(arguments_.c0, scalar_t{}),
        .c0_float = state_of(arguments_.c0, float{}),
        .h = {written(h, 0, scalar_t{}), h.by.buffers == 2 ? written(h, 1, scalar_t{}) : nullptr},
        .h_stride = layout_.h_stride(),
        .cell = written(cell, 0, float{}),
        .h_n = outputs_.h_n.mutable_data_ptr<scalar_t>() + first * layout_.state_size,
    };
    check_launch(launch_sequence_start(start, device_.stream()));
  }

  /// Runs the rows [first, first + count) of the batch, for all steps.
  template <typename scalar_t>
  void run_rows(int64_t first, int64_t count) {
    const Layout& of = layout_;
    const Tensor h_n = outputs_.h_n.narrow(0, first, count);
    const Tensor c_n = outputs_.c_n.narrow(0, first, count);
    const Tensor h_memory =
        device_.empty({of.h.buffers, count, of.h_stride()}, arguments_.input.scalar_type());
    if (multiplies_gap()) {
      h_memory.zero_();
    }
    const bool has_cell_buffer = of.cell.buffers > 0;
    const Tensor cell_memory =
        has_cell_buffer ? device_.empty({count, of.state_size}, at::kFloat) : c_n;
    const auto h_buffer = [&](int64_t i) {
      return Matrix{kept_at(h_memory, std::min(i, of.h.buffers - 1), 0), of.h_stride()};
    };
    const Matrix cell_buffer{cell_memory.const_data_ptr(), of.state_size};
    const Carried h{of.h,
                    of.h.initial ? rows_from(*arguments_.h0, first) : Matrix{},
                    outputs_.output,
                    {h_buffer(0), h_buffer(1)},
                    first,
                    of.state_size};
    const Carried cell{of.cell,
                       of.cell.initial ? rows_from(*arguments_.c0, first) : Matrix{},
                       outputs_.cells,
                       {cell_buffer, cell_buffer},
                       first,
                       of.state_size};
    if (of.has_start()) {
      start_rows<scalar_t>(count, h, cell);
    }

    StepProblem step{};
    static_cast<ForwardProblem&>(step) = of.problem(count, {}, rows_of(arguments_.weight_hh));
    if (of.copies_weights) {
      step.weights.data = weights_.const_data_ptr();
    }
    step.added = {data_or_null<scalar_t>(bias_), 0};
    step.rows = rows_of_sequence(arguments_.lengths, arguments_.reset, first);
    step.h_n = h_n.mutable_data_ptr();
    // If cells are not kept, the last step writes c_n in their place.
    const bool rounds_last_cell = of.h.result && has_cell_buffer && outputs_.cells.size(0) == 0;
    const Tensor& input = arguments_.input;
    const Tensor chunk = empty_chunk(count);
    int64_t first_time = 0;  // in the chunk
    for (int64_t k = 0; k < of.steps; ++k) {
      const int64_t t = time_of(k);
      const bool is_last = k + 1 == of.steps;
      const bool starts_chunk = chunk.defined() && k % chunk.size(0) == 0;
      if (starts_chunk) {
        const int64_t steps = std::min(chunk.size(0), of.steps - k);
        first_time = std::min(t, time_of(k + steps - 1));
        fill(chunk.narrow(0, 0, steps), input.narrow(0, first_time, steps).narrow(1, first, count));
      }
      const void* const part = chunk.defined() ? kept_at(chunk, t - first_time, 0) : nullptr;
      if (of.hoists_input()) {
        step.added = {part, of.gates};
      } else {
        step.input = of.copies_input ? Matrix{part, of.input_stride()}
                                     : rows_of(input).from(
                                           t * input.stride(0) + first * input.stride(1), of.size);
      }
      step.follows_a_step = k > 0 && !starts_chunk;
      step.t = t;
      step.next_t = is_last ? kNever : time_of(k + 1);
      step.old_h = h.before(k, time_of(k - 1));
      step.next_h = h.after(k);
      step.old_cell = cell.before(k, time_of(k - 1));
      step.next_cell = const_cast<void*>((is_last ? cell_buffer : cell.after(k)).data);
      step.new_h = kept_at(outputs_.output, t, first);
      step.new_cell =
          is_last && rounds_last_cell ? c_n.mutable_data_ptr() : kept_at(outputs_.cells, t, first);
      step.gates = kept_at(outputs_.gates, t, first);
      check_launch(launch_forward(plan_.kernel, step, device_.stream()));
    }
    if (has_cell_buffer && !rounds_last_cell) {
      c_n.copy_(cell_memory);
    }
  }

  /// Memory for z_x of some steps or for a copy of their input; undefined if neither is needed.
  Tensor empty_chunk(int64_t count) const {
    const Layout& of = layout_;
    if (of.hoists_input()) {
      return device_.empty({of.steps_a_chunk(count * of.hoisted_row * of.size), count, of.gates},
                           arguments_.input.scalar_type());
    }
    if (of.copies_input) {
      const int64_t stride = of.input_stride();
      return device_.empty({of.steps_a_chunk(count * stride * of.size), count, stride},
                           arguments_.input.scalar_type());
    }
    return {};
  }

  /// Computes z_x of some steps, or copies their input.
  void fill(const Tensor& chunk, const Tensor& input) {
    if (layout_.hoists_input()) {
      compute_input_product(chunk, input, arguments_, device_);
    } else {
      chunk.narrow(2, 0, layout_.input_features).copy_(input);
    }
  }

  const SequenceOutputs& outputs_;
  const RecurrentArguments& arguments_;
  const Device& device_;
  const bool reverse_;
  const StepsPlan& plan_;
  const Layout& layout_ = plan_.layout;
  Tensor weights_;  // if copied
  Tensor bias_;     // contiguous, or undefined
};

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
    StepsOfSequence(outputs, arguments, plan.steps, device, reverse).run();
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
