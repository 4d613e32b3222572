// The forward of a sequence by one kernel per step: the cell's own kernels (plan.h) with the
// epilogue of a step.
//
// A step's kernel computes both halves of its product, [h | x], and reads h where the previous step
// left it: in output or, where rows are reset, have lengths of their own or do not start at 16
// bytes, in two buffers that alternate. The cell state is carried in float: in cells or c_n where
// these are float, otherwise in a buffer. Weights and input that do not start at 16 bytes are
// copied to rows that every kernel can read in vectors: weights once per call, input in chunks of
// time.
#include "../optional_tensor.h"
#include "plan/plan.h"
#include "runtime/launch_check.h"
#include "sequence.h"

namespace lltm::cuda {
namespace {

using at::Tensor;

// The size of the workspace, and the most of it that copies of weights and of a chunk of input
// take. The rest is for the state of the rows that are run at a time.
constexpr int64_t kWorkspaceBytes = 60 << 20, kChunkBytes = 16 << 20;

/// Where everything is stored. It depends only on sizes and strides.
struct Layout : StepOperands {
  int64_t steps = 0, batch = 0;
  // Whether rows have lengths or resets of their own. Otherwise all run, starting and ending
  // together.
  bool own_rows = false;
  bool h_in_output = false, cell_in_cells = false, cell_in_workspace = false;
  bool starts_with_h0 = false, starts_with_c0 = false;  // read in place

  int64_t chunk_bytes() const {
    return copies_input ? std::min((kWorkspaceBytes - weights_bytes()) / 3, kChunkBytes) : 0;
  }
  int64_t h_buffers() const { return steps > 1 && !h_in_output ? 2 : starts_with_h0 ? 0 : 1; }
  bool has_start() const { return own_rows || !starts_with_h0 || !starts_with_c0; }

  /// The number of rows whose part of the workspace fits its share.
  int64_t rows_at_a_time() const {
    const int64_t state_bytes =
        h_buffers() * h_stride() * size + (cell_in_workspace ? state_size * 4 : 0);
    int64_t rows = batch;
    if (state_bytes > 0) {
      rows = std::min(rows, (kWorkspaceBytes - weights_bytes() - chunk_bytes()) / state_bytes);
    }
    if (copies_input) {
      rows = std::min(rows, chunk_bytes() / (input_stride() * size));
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
  of.cell_in_workspace = outputs.c_n.scalar_type() != at::kFloat;
  of.copy_unless(is_describable(weights),
                 is_describable(input) && input.stride(0) * size % 16 == 0);
  of.starts_with_h0 = is_given(arguments.h0) && !of.own_rows && is_describable(*arguments.h0);
  of.starts_with_c0 =
      is_given(arguments.c0) && !of.own_rows && arguments.c0->scalar_type() == at::kFloat &&
      has_rows(*arguments.c0) &&
      rows_of(*arguments.c0).starts_at_neighbors(neighbors_in(of.state_size), sizeof(float));
  return of;
}

Matrix rows_from(const Tensor& matrix, int64_t first) {
  return rows_of(matrix).from(first * matrix.stride(0), static_cast<int>(matrix.element_size()));
}

class StepsOfSequence {
 public:
  StepsOfSequence(const SequenceOutputs& outputs,
                  const SequenceArguments& arguments,
                  const Device& device,
                  Arithmetic arithmetic,
                  bool reverse)
      : outputs_(outputs),
        arguments_(arguments),
        device_(device),
        layout_(layout_of(outputs, arguments)),
        reverse_(reverse) {
    if (layout_.weights_bytes() > Layout::kWeightsBytes) {
      if (!has_rows(arguments.weights)) {
        return;
      }
      layout_.copies_weights = false;
    }
    rows_at_a_time_ = layout_.rows_at_a_time();
    plan_ = plan_forward(
        device.facts(),
        arithmetic,
        layout_.problem(rows_at_a_time_, rows_of(arguments.input), rows_of(arguments.weights)),
        /*is_step=*/true);
  }

  bool by_library() const { return plan_.choice.candidate == nullptr || plan_.by_library(); }

  template <typename scalar_t>
  void run() {
    copy_weights();
    copy_bias();
    for (int64_t first = 0; first < layout_.batch; first += rows_at_a_time_) {
      const int64_t count = std::min(rows_at_a_time_, layout_.batch - first);
      if (layout_.h_in_output) {
        run_rows<scalar_t, StepProblem>(first, count);
      } else {
        run_rows<scalar_t, StepOfRowsProblem>(first, count);
      }
    }
  }

 private:
  void copy_weights() {
    const Tensor& weights = arguments_.weights;
    if (!layout_.copies_weights) {
      return;
    }
    weights_ = device_.empty({weights.size(0), layout_.weights_stride()}, weights.scalar_type());
    weights_.narrow(1, 0, layout_.state_size).copy_(h_columns(weights));
    weights_.narrow(1, layout_.state_size + layout_.weights_gap(), layout_.input_features)
        .copy_(input_columns(weights));
  }

  void copy_bias() {
    bias_ = contiguous_or_undefined(arguments_.bias);
    if (bias_.defined() &&
        !Matrix{bias_.const_data_ptr(), 0}.starts_at_neighbors(4, layout_.size)) {
      bias_ = bias_.clone();
    }
  }

  int64_t time_of(int64_t k) const { return reverse_ ? layout_.steps - 1 - k : k; }

  /// Runs the rows [first, first + count) of the batch, for all steps.
  template <typename scalar_t, typename Problem>
  void run_rows(int64_t first, int64_t count) {
    const Layout& of = layout_;
    const auto dtype = arguments_.input.scalar_type();
    const Tensor h_memory = device_.empty({of.h_buffers(), count, of.h_stride()}, dtype);
    const Tensor cell_memory =
        device_.empty({of.cell_in_workspace ? count : 0, of.state_size}, at::kFloat);
    const auto h_buffer = [&](int64_t k) {
      return Matrix{kept_at(h_memory, k % std::max<int64_t>(of.h_buffers(), 1), 0), of.h_stride()};
    };
    const Tensor last_cell = outputs_.c_n.narrow(0, first, count);
    void* const h_n = outputs_.h_n.narrow(0, first, count).mutable_data_ptr();
    void* const c_n = last_cell.mutable_data_ptr();
    auto* const cell =
        static_cast<float*>(of.cell_in_workspace ? cell_memory.mutable_data_ptr() : c_n);
    const RowsOfSequence rows = rows_of_sequence(arguments_, first);

    if (of.has_start()) {
      auto start = start_of_sequence<scalar_t>(arguments_, of.state_size, first, count, reverse_);
      start.h_stride = of.h_stride();
      start.cell = of.starts_with_c0 ? nullptr : cell;
      start.h_n = static_cast<scalar_t*>(h_n);
      if (!of.starts_with_h0) {
        for (int64_t i = 0; i < of.h_buffers(); ++i) {
          start.h[i] = static_cast<scalar_t*>(const_cast<void*>(h_buffer(i).data));
        }
      }
      check_launch(launch_sequence_start(start, device_.stream()));
    }

    Problem step{};
    static_cast<ForwardProblem&>(step) = of.problem(count, {}, rows_of(arguments_.weights));
    if (of.copies_weights) {
      step.weights.data = weights_.const_data_ptr();
    }
    step.bias = data_or_null<scalar_t>(bias_);
    // If cells are not kept, the last step writes c_n in their place.
    const bool rounds_last_cell =
        of.h_in_output && of.cell_in_workspace && outputs_.cells.size(0) == 0;
    const Tensor& input = arguments_.input;
    Tensor chunk;            // of input, if copied
    int64_t first_time = 0;  // in the chunk
    if (of.copies_input) {
      const int64_t bytes_a_step = count * of.input_stride() * of.size;
      chunk = device_.empty({std::clamp<int64_t>(of.chunk_bytes() / bytes_a_step, 1, of.steps),
                             count,
                             of.input_stride()},
                            dtype);
    }
    for (int64_t k = 0; k < of.steps; ++k) {
      const int64_t t = time_of(k), last_t = time_of(k - 1);
      const bool is_last = k + 1 == of.steps;
      const bool copies = of.copies_input && k % chunk.size(0) == 0;
      if (copies) {
        const int64_t steps = std::min(chunk.size(0), of.steps - k);
        first_time = std::min(t, time_of(k + steps - 1));
        chunk.narrow(0, 0, steps)
            .narrow(2, 0, of.input_features)
            .copy_(input.narrow(0, first_time, steps).narrow(1, first, count));
      }
      step.input = of.copies_input ? Matrix{kept_at(chunk, t - first_time, 0), of.input_stride()}
                                   : rows_of(input).from(
                                         t * input.stride(0) + first * input.stride(1), of.size);
      step.follows_a_step = k > 0 && !copies;
      step.old_h = k == 0 && of.starts_with_h0 ? rows_from(*arguments_.h0, first)
                   : k > 0 && of.h_in_output
                       ? Matrix{kept_at(outputs_.output, last_t, first), of.state_size}
                       : h_buffer(k);
      step.old_cell = k == 0 && of.starts_with_c0 ? rows_from(*arguments_.c0, first)
                      : k > 0 && of.cell_in_cells
                          ? Matrix{kept_at(outputs_.cells, last_t, first), of.state_size}
                          : Matrix{cell, of.state_size};
      step.next_cell = of.cell_in_cells && !is_last ? nullptr : cell;
      step.new_h = kept_at(outputs_.output, t, first);
      step.new_cell = kept_at(outputs_.cells, t, first);
      step.gates = kept_at(outputs_.gates, t, first);
      if constexpr (std::is_same_v<Problem, StepOfRowsProblem>) {
        step.t = t;
        step.next_t = is_last ? kNever : time_of(k + 1);
        step.rows = rows;
        step.next_h = h_buffer(k + 1);
        step.h_n = h_n;
      } else if (is_last) {
        step.h_n = h_n;
        if (rounds_last_cell) {
          step.new_cell = c_n;
        }
      }
      check_launch(launch_forward(plan_, step, device_.stream()));
    }
    if (of.cell_in_workspace && !rounds_last_cell) {
      last_cell.copy_(cell_memory);
    }
  }

  const SequenceOutputs& outputs_;
  const SequenceArguments& arguments_;
  const Device& device_;
  Layout layout_;
  int64_t rows_at_a_time_ = 0;
  const bool reverse_;
  ForwardPlan plan_;
  Tensor weights_;  // if copied
  Tensor bias_;     // contiguous, or undefined
};

}  // namespace

bool run_sequence_by_steps(const SequenceOutputs& outputs,
                           const SequenceArguments& arguments,
                           const Device& device,
                           bool reverse) {
  const std::optional<Arithmetic> arithmetic = arithmetic_of(arguments.input.scalar_type());
  if (!arithmetic) {
    selection();  // an unknown selection is an error for every dtype
    return false;
  }
  if (arguments.input.size(0) == 0) {
    return false;
  }
  StepsOfSequence steps(outputs, arguments, device, *arithmetic, reverse);
  if (steps.by_library()) {
    return false;
  }
  with_arithmetic(*arithmetic,
                  [&]<Arithmetic kArithmetic>() { steps.run<TensorElement<kArithmetic>>(); });
  return true;
}

}  // namespace lltm::cuda
