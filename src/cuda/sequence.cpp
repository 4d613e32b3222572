// lltm::sequence and lltm::lstm on CUDA. The LSTM runs by products of the library. The LLTM runs in
// one kernel (recurrence.cpp) or step by step, each by one of the cell's kernels (plan.h) with the
// epilogue of a step or, where that is faster, by products of the library and a pointwise kernel
// (library/sequence.cpp). The host knows only sizes, so a call can be captured in a graph.
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

#include "../cell/products.h"
#include "../dispatch/optional_tensor.h"
#include "../operators/checks.h"
#include "../operators/operators.h"
#include "../operators/outputs.h"
#include "input_product.h"
#include "kernels/forward/launch.h"
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

namespace lltm::cuda {
namespace {

using at::Tensor;

// The size of the workspace, and the most of it that a chunk of input or of z_x takes. The rest is
// for copies of weights, up to StepOperands::kWeightsBytes, and for the state of the rows that are
// run at a time.
constexpr int64_t kWorkspaceBytes = 60 << 20, kChunkBytes = 16 << 20;

// Microseconds of a step that no model estimates.
constexpr double kSlowStep = 20;

std::string describe_plan(std::string_view kernel, int cluster, int64_t rows, bool x_inside) {
  return "kernel=" + std::string(kernel) + " cluster=" + std::to_string(cluster) +
         " rows=" + std::to_string(rows) + " x=" + (x_inside ? "inside" : "outside");
}

/// Where everything is stored. It depends only on sizes and strides.
struct Layout : StepOperands {
  int64_t steps = 0, batch = 0;
  bool hoists_input = false;  // z_x is computed before the steps, in the operands' type
  int64_t hoisted_row = 0;    // elements of a row of z_x, and of a copy of the input
  c10::ScalarType accumulated = at::kFloat;  // the type of the carried cell state
  // Whether rows have lengths or resets of their own. Otherwise all run, starting and ending
  // together.
  bool own_rows = false;
  bool h_in_output = false, cell_in_cells = false, cell_in_workspace = false;
  bool starts_with_h0 = false, starts_with_c0 = false;  // read in place

  int64_t chunk_bytes() const {
    return copies_input || hoists_input
               ? std::min((kWorkspaceBytes - weights_bytes()) / 3, kChunkBytes)
               : 0;
  }
  int64_t h_buffers() const { return steps > 1 && !h_in_output ? 2 : starts_with_h0 ? 0 : 1; }
  int64_t steps_a_chunk(int64_t bytes_a_step) const {
    return std::clamp<int64_t>(chunk_bytes() / bytes_a_step, 1, std::max<int64_t>(steps, 1));
  }
  bool has_start() const { return own_rows || !starts_with_h0 || !starts_with_c0; }

  /// The number of rows whose part of the workspace fits its share.
  int64_t rows_at_a_time() const {
    const auto cell_size = static_cast<int64_t>(c10::elementSize(accumulated));
    const int64_t state_bytes =
        h_buffers() * h_stride() * size + (cell_in_workspace ? state_size * cell_size : 0);
    int64_t rows = batch;
    if (state_bytes > 0) {
      rows = std::min(rows, (kWorkspaceBytes - weights_bytes() - chunk_bytes()) / state_bytes);
    }
    if (copies_input) {
      rows = std::min(rows, chunk_bytes() / (input_stride() * size));
    }
    if (hoists_input) {
      rows = std::min(rows, chunk_bytes() / (hoisted_row * size));
    }
    return std::max<int64_t>(rows, 1);
  }
};

Layout layout_of(const SequenceOutputs& outputs, const SequenceArguments& arguments) {
  const Tensor &input = arguments.input, &weights = arguments.weights;
  Layout of;
  of.size = static_cast<int>(input.element_size());
  of.steps = input.size(0);
  of.batch = input.size(1);
  of.input_features = input.size(2);
  of.state_size = outputs.h_n.size(1);
  const int size = of.size;
  of.own_rows = is_given(arguments.lengths) || is_given(arguments.reset);
  of.h_in_output = of.whole_state() && !of.own_rows;
  of.cell_in_cells = size == 4 && outputs.cells.size(0) > 0 && of.h_in_output;
  of.accumulated = input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  of.cell_in_workspace = outputs.c_n.scalar_type() != of.accumulated;
  of.choose_copies(is_describable(weights),
                   is_describable(input) && input.stride(0) * size % 16 == 0);
  of.starts_with_h0 =
      is_given(arguments.h0) && !of.own_rows && of.whole_state() && is_describable(*arguments.h0);
  of.starts_with_c0 =
      is_given(arguments.c0) && !of.own_rows && arguments.c0->scalar_type() == at::kFloat &&
      has_rows(*arguments.c0) &&
      (of.state_size % 4 != 0 || rows_of(*arguments.c0).starts_at_neighbors(4, sizeof(float)));
  return of;
}

/// The same if z_x is computed before the steps.
Layout layout_with_hoisted_input(Layout of, const Tensor& input) {
  of.hoists_input = true;
  of.hoisted_row = 3 * of.state_size + copied_input_columns(input);
  of.input_features = 0;
  of.copies_input = false;
  return of;
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

class StepsOfSequence {
 public:
  StepsOfSequence(const SequenceOutputs& outputs,
                  const SequenceArguments& arguments,
                  const SequenceSizes<int64_t>& sizes,
                  const Device& device,
                  bool reverse)
      : outputs_(outputs),
        arguments_(arguments),
        lengths_(int64_lengths(arguments.lengths)),
        sizes_(sizes),
        device_(device),
        layout_(layout_of(outputs, arguments)),
        reverse_(reverse),
        by_library_(!plan_kernels()) {}

  /// An estimate of the time of all steps in microseconds.
  double time() const {
    const double step = plan_.choice.candidate == nullptr ? kSlowStep : plan_.choice.estimate.us;
    return static_cast<double>(layout_.steps) * step;
  }

  /// The kernel of a step, for lltm::sequence_plan.
  std::string description() const {
    if (by_library_) {
      return describe_plan("library", 1, layout_.batch, /*x_inside=*/false);
    }
    const ForwardCandidate& candidate = *plan_.choice.candidate;
    const int rows = candidate.tile.rows;
    return describe_plan(candidate.name,
                         plan_.choice.estimate.ranks * std::max(candidate.tile.row_tiles, 1),
                         rows > 0 ? rows : layout_.batch,
                         /*x_inside=*/!layout_.hoists_input);
  }

  void run() {
    if (by_library_) {
      library_sequence_out(outputs_, recurrent(arguments_), sizes_, device_, reverse_);
      return;
    }
    with_scalar(arguments_.input.scalar_type(), [&]<typename scalar_t>() { run<scalar_t>(); });
  }

 private:
  template <typename scalar_t>
  void run() {
    copy_weights();
    copy_bias();
    for (int64_t first = 0; first < layout_.batch; first += rows_at_a_time_) {
      run_rows<scalar_t>(first, std::min(rows_at_a_time_, layout_.batch - first));
    }
  }

  /// Returns false if the library should compute the products: in float64, on GPUs older than
  /// sm_80, without steps, and for sizes at which it is faster.
  bool plan_kernels() {
    const std::optional<Arithmetic> arithmetic = arithmetic_of(arguments_.input.scalar_type());
    if (!arithmetic) {
      selection();  // an unknown selection is an error for every dtype
      return false;
    }
    const Layout with_input = layout_;
    const bool found = plan_layout(*arithmetic, with_input);
    if (layout_.input_features == 0) {
      return found;
    }
    const Layout planned = layout_;
    const ForwardPlan plan = plan_;
    const double us = found ? plan.choice.estimate.us : kSlowStep;
    if (plan_layout(*arithmetic, layout_with_hoisted_input(with_input, arguments_.input))) {
      const double of_input = time_of_hoisted_input(*arithmetic);
      constexpr double kMargin = 1.1;  // the estimates are that uncertain
      if (kMargin * (plan_.choice.estimate.us + of_input) < us) {
        plan_.choice.estimate.us += of_input;
        return true;
      }
    }
    layout_ = planned;
    plan_ = plan;
    rows_at_a_time_ = layout_.rows_at_a_time();
    return found;
  }

  /// What z_x takes of a step.
  double time_of_hoisted_input(Arithmetic arithmetic) const {
    const int64_t steps =
        layout_.steps_a_chunk(rows_at_a_time_ * layout_.hoisted_row * layout_.size);
    const InputProductPlan product = plan_input_product({.arithmetic = arithmetic,
                                                         .rows = steps * rows_at_a_time_,
                                                         .input_features = arguments_.input.size(2),
                                                         .state_size = layout_.state_size,
                                                         .columns = arguments_.weights.size(0)},
                                                        device_.facts());
    return product.us / static_cast<double>(steps) *
           static_cast<double>(ceil_div(layout_.batch, rows_at_a_time_));
  }

  /// Plans the steps of a layout.
  bool plan_layout(Arithmetic arithmetic, const Layout& layout) {
    layout_ = layout;
    const Tensor& weights = arguments_.weights;
    if (layout_.weights_bytes() > Layout::kWeightsBytes) {
      layout_.copies_weights = false;
    }
    if (layout_.steps == 0 || (!layout_.copies_weights && !has_rows(weights))) {
      return false;
    }
    rows_at_a_time_ = layout_.rows_at_a_time();
    const Matrix input = layout_.input_features > 0 ? rows_of(arguments_.input) : Matrix{};
    plan_ = plan_forward(device_.facts(),
                         arithmetic,
                         layout_.problem(rows_at_a_time_, input, rows_of(weights)),
                         /*is_step=*/true);
    return !plan_.by_library();
  }

  /// Whether the kernel reads h in vectors that go on in the gap behind the columns of the state,
  /// where both operands must be zeros.
  bool multiplies_gap() const {
    return plan_.choice.candidate->group == Group::kFewRows && layout_.weights_gap() > 0;
  }

  void copy_weights() {
    const Tensor& weights = arguments_.weights;
    if (!layout_.copies_weights) {
      return;
    }
    weights_ = device_.empty({weights.size(0), layout_.weights_stride()}, weights.scalar_type());
    weights_.narrow(1, 0, layout_.state_size).copy_(h_columns(weights));
    if (multiplies_gap()) {
      weights_.narrow(1, layout_.state_size, layout_.weights_gap()).zero_();
    }
    if (layout_.input_features > 0) {
      weights_.narrow(1, layout_.state_size + layout_.weights_gap(), layout_.input_features)
          .copy_(input_columns(weights));
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

  /// Writes the state that the rows [first, first + count) start from, except what is read in
  /// place.
  template <typename scalar_t, typename HBuffer>
  void start_rows(int64_t first,
                  int64_t count,
                  const HBuffer& h_buffer,
                  accumulate_t<scalar_t>* cell) {
    const auto state_of = [&]<typename T>(const std::optional<Tensor>& initial, T) {
      return is_given(initial) && initial->scalar_type() == c10::CppTypeToScalarType<T>::value
                 ? steps_of<T>(initial->narrow(0, first, count))
                 : Steps<T>{};
    };
    SequenceStartParams<scalar_t> start{
        .rows = count,
        .state_size = layout_.state_size,
        .steps = layout_.steps,
        .reverse = reverse_,
        .rows_of_sequence = rows_of_sequence(lengths_, arguments_.reset, first),
        .h0 = state_of(arguments_.h0, scalar_t{}),
        .c0 = state_of(arguments_.c0, scalar_t{}),
        .c0_float = state_of(arguments_.c0, float{}),
        .h = {},
        .h_stride = h_buffer(0).stride,
        .cell = cell,
        .h_n = outputs_.h_n.mutable_data_ptr<scalar_t>() + first * layout_.state_size,
    };
    for (int64_t i = 0; i < layout_.h_buffers() && !layout_.starts_with_h0; ++i) {
      start.h[i] = static_cast<scalar_t*>(const_cast<void*>(h_buffer(i).data));
    }
    check_launch(launch_sequence_start(start, device_.stream()));
  }

  /// Runs the rows [first, first + count) of the batch, for all steps.
  template <typename scalar_t>
  void run_rows(int64_t first, int64_t count) {
    using acc_t = accumulate_t<scalar_t>;
    const Layout& of = layout_;
    const auto dtype = arguments_.input.scalar_type();
    const Tensor h = outputs_.h_n.narrow(0, first, count);
    const Tensor last_cell = outputs_.c_n.narrow(0, first, count);
    void* const h_n = h.mutable_data_ptr();
    const Tensor h_memory = device_.empty({of.h_buffers(), count, of.h_stride()}, dtype);
    if (multiplies_gap()) {
      h_memory.zero_();
    }
    const Tensor cell_memory =
        device_.empty({of.cell_in_workspace ? count : 0, of.state_size}, of.accumulated);
    const auto h_buffer = [&](int64_t k) {
      return Matrix{kept_at(h_memory, k % std::max<int64_t>(of.h_buffers(), 1), 0), of.h_stride()};
    };
    void* const c_n = last_cell.mutable_data_ptr();
    auto* const cell =
        static_cast<acc_t*>(of.cell_in_workspace ? cell_memory.mutable_data_ptr() : c_n);

    if (of.has_start()) {
      start_rows<scalar_t>(first, count, h_buffer, of.starts_with_c0 ? nullptr : cell);
    }

    StepProblem step{};
    static_cast<ForwardProblem&>(step) = of.problem(count, {}, rows_of(arguments_.weights));
    if (of.copies_weights) {
      step.weights.data = weights_.const_data_ptr();
    }
    step.added = {data_or_null<scalar_t>(bias_), 0};
    step.rows = rows_of_sequence(lengths_, arguments_.reset, first);
    step.h_n = h_n;
    // If cells are not kept, the last step writes c_n in their place.
    const bool rounds_last_cell =
        of.h_in_output && of.cell_in_workspace && outputs_.cells.size(0) == 0;
    const Tensor& input = arguments_.input;
    const Tensor chunk = empty_chunk(count);
    int64_t first_time = 0;  // in the chunk
    for (int64_t k = 0; k < of.steps; ++k) {
      const int64_t t = time_of(k), previous_t = time_of(k - 1);
      const bool is_last = k + 1 == of.steps;
      const bool starts_chunk = chunk.defined() && k % chunk.size(0) == 0;
      if (starts_chunk) {
        const int64_t steps = std::min(chunk.size(0), of.steps - k);
        first_time = std::min(t, time_of(k + steps - 1));
        fill(chunk.narrow(0, 0, steps), input.narrow(0, first_time, steps).narrow(1, first, count));
      }
      const void* const part = chunk.defined() ? kept_at(chunk, t - first_time, 0) : nullptr;
      if (of.hoists_input) {
        step.added = {part, 3 * of.state_size};
      } else {
        step.input = of.copies_input ? Matrix{part, of.input_stride()}
                                     : rows_of(input).from(
                                           t * input.stride(0) + first * input.stride(1), of.size);
      }
      step.follows_a_step = k > 0 && !starts_chunk;
      step.old_h = k == 0 && of.starts_with_h0 ? rows_from(*arguments_.h0, first)
                   : k > 0 && of.h_in_output
                       ? Matrix{kept_at(outputs_.output, previous_t, first), of.state_size}
                       : h_buffer(k);
      step.old_cell = k == 0 && of.starts_with_c0 ? rows_from(*arguments_.c0, first)
                      : k > 0 && of.cell_in_cells
                          ? Matrix{kept_at(outputs_.cells, previous_t, first), of.state_size}
                          : Matrix{cell, of.state_size};
      step.next_cell = of.cell_in_cells && !is_last ? nullptr : cell;
      step.new_h = kept_at(outputs_.output, t, first);
      step.new_cell = kept_at(outputs_.cells, t, first);
      step.gates = kept_at(outputs_.gates, t, first);
      if (is_last && rounds_last_cell) {
        step.new_cell = c_n;
      }
      step.t = t;
      step.next_t = is_last ? kNever : time_of(k + 1);
      step.next_h = of.h_in_output ? Matrix{} : h_buffer(k + 1);
      check_launch(launch_forward(plan_, step, device_.stream()));
    }
    if (of.cell_in_workspace && !rounds_last_cell) {
      last_cell.copy_(cell_memory);
    }
  }

  /// Memory for z_x of some steps or for a copy of their input; undefined if neither is needed.
  Tensor empty_chunk(int64_t count) const {
    const Layout& of = layout_;
    if (of.hoists_input) {
      return device_.empty(
          {of.steps_a_chunk(count * of.hoisted_row * of.size), count, 3 * of.state_size},
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
    if (layout_.hoists_input) {
      compute_input_product(chunk, input, recurrent(arguments_), device_);
    } else {
      chunk.narrow(2, 0, layout_.input_features).copy_(input);
    }
  }

  const SequenceOutputs& outputs_;
  const SequenceArguments& arguments_;
  const std::optional<Tensor> lengths_;  // in int64
  const SequenceSizes<int64_t>& sizes_;
  const Device& device_;
  Layout layout_;
  int64_t rows_at_a_time_ = 0;
  const bool reverse_;
  ForwardPlan plan_;
  const bool by_library_;
  Tensor weights_;  // if copied
  Tensor bias_;     // contiguous, or undefined
};

/// The kernel for all steps, or null.
const RecurrenceCandidate* plan(const SequenceOutputs& outputs,
                                const SequenceArguments& arguments,
                                const SequenceSizes<int64_t>& sizes,
                                const Device& device,
                                double time_of_steps) {
  const int64_t at_once = steps_of_z_x(outputs, arguments.input, sizes);
  const RecurrenceShape shape{.arithmetic = arithmetic_of(arguments.input.scalar_type()),
                              .steps = sizes.steps,
                              .rows = sizes.batch,
                              .input_features = sizes.input_features,
                              .state_size = sizes.state_size,
                              .backward = false,
                              .launches = at_once == 0 ? 0 : ceil_div(sizes.steps, at_once),
                              .in_pairs = is_in_pairs(sizes),
                              .input_in_pairs = input_is_in_pairs(arguments.input)};
  return plan_recurrence(device.facts(), shape, time_of_steps);
}

void run(const SequenceOutputs& outputs,
         const SequenceArguments& arguments,
         const SequenceSizes<int64_t>& sizes,
         const Device& device,
         bool reverse) {
  StepsOfSequence steps(outputs, arguments, sizes, device, reverse);
  if (const RecurrenceCandidate* const candidate =
          plan(outputs, arguments, sizes, device, steps.time())) {
    run_recurrence(*candidate, outputs, recurrent(arguments), sizes, device, reverse);
  } else {
    steps.run();
  }
}

void run(const SequenceOutputs& outputs,
         const LstmArguments& arguments,
         const SequenceSizes<int64_t>& sizes,
         const Device& device,
         bool reverse) {
  require_steps("lltm::lstm");
  library_sequence_out(outputs, recurrent(arguments), sizes, device, reverse);
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
    run(outputs, arguments, sizes, device, reverse);
  }
  return outputs.results();
}

/// How sequence() would compute these arguments.
std::string sequence_plan(const SequenceArguments& arguments, bool reverse, bool keep) {
  const auto sizes = check<int64_t>(arguments);
  const Device device(arguments.input);
  if (sizes.steps * sizes.batch * sizes.state_size == 0) {
    return describe_plan("none", 0, 0, false);
  }
  const SequenceOutputs outputs =
      empty_outputs(arguments, sizes, keep, [](at::IntArrayRef shape, at::ScalarType dtype) {
        return at::detail::empty_meta(shape, dtype);
      });
  const StepsOfSequence steps(outputs, arguments, sizes, device, reverse);
  const RecurrenceCandidate* const candidate =
      plan(outputs, arguments, sizes, device, steps.time());
  return candidate != nullptr
             ? describe_plan(candidate->name,
                             candidate->tile.cluster,
                             rows_of_group(candidate->tile, sizes.batch, device.facts()),
                             candidate->tile.x_inside)
             : steps.description();
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CUDA, m) {
  m.impl("sequence", op::Sequence::kernel<sequence<SequenceArguments>>());
  m.impl("lstm", op::Lstm::kernel<sequence<LstmArguments>>());
  m.impl("sequence_plan", op::SequencePlan::kernel<sequence_plan>());
}

}  // namespace lltm::cuda
