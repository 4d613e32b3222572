#include "steps.h"

#include "../dispatch/optional_tensor.h"
#include "input_product.h"
#include "launch_forward.h"
#include "runtime/launch_check.h"
#include "runtime/rows.h"
#include "sequence.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>

namespace lltm::cuda {
namespace {

using at::Tensor;

/// The state that the steps of some rows leave to each other.
class Carried {
 public:
  /// `initial` is h0 or c0, and `result` output or cells, from first_row on. `buffers` has a matrix
  /// for each buffer.
  Carried(const CarriedBy& by,
          const std::optional<Tensor>& initial,
          const Tensor& result,
          const Tensor& buffers,
          const StepOrder& order,
          int64_t first_row)
      : by_(by), result_(result), buffers_(buffers), order_(order), first_row_(first_row) {
    if (by.initial) {
      initial_ = rows_of(*initial).from(first_row * initial->stride(0),
                                        static_cast<int>(initial->element_size()));
    }
  }

  /// What step k starts from.
  Matrix before(int64_t k) const {
    return k == 0 && by_.initial ? initial_
           : k > 0 && by_.result
               ? Matrix{address_of(result_, order_.time_of(k - 1), first_row_), result_.size(2)}
               : buffer(k);
  }
  /// Where step k leaves it to the next one; null data if only in the result.
  Matrix after(int64_t k) const { return by_.result ? Matrix{} : buffer(k + 1); }
  /// What holds the state before step k if nothing else does.
  Matrix buffer(int64_t k) const {
    return {address_of(buffers_, std::min(k % 2, buffers_.size(0) - 1), 0), buffers_.stride(1)};
  }
  /// Where the state before the first step has to be written, in every buffer; null: nowhere.
  template <typename T>
  T* start(int64_t k) const {
    return by_.initial || k >= buffers_.size(0)
               ? nullptr
               : static_cast<T*>(const_cast<void*>(buffer(k).data));
  }

 private:
  const CarriedBy& by_;
  Matrix initial_{};
  const Tensor& result_;
  const Tensor buffers_;
  const StepOrder& order_;
  int64_t first_row_;
};

template <typename scalar_t>
class StepsForward {
 public:
  StepsForward(const StepsPlan& plan,
               const SequenceOutputs& outputs,
               const RecurrentArguments& arguments,
               const Device& device,
               bool reverse)
      : plan_(plan),
        outputs_(outputs),
        arguments_(arguments),
        device_(device),
        order_{.steps = plan.layout.steps, .reverse = reverse} {}

  void run() {
    copy_weights();
    copy_bias();
    for (int64_t first = 0; first < of_.batch; first += plan_.rows_at_a_time) {
      run_rows(first, std::min(plan_.rows_at_a_time, of_.batch - first));
    }
  }

 private:
  /// Whether the kernel reads h in vectors that go on behind the columns of the state, where both
  /// operands must be zeros.
  bool multiplies_gap() const {
    return plan_.kernel.choice.candidate->group == Group::kFewRows && !of_.whole_state();
  }

  Tensor copy_of(const Tensor& weights, int64_t stride) const {
    const Tensor copy = device_.empty({of_.gates, stride}, weights.scalar_type());
    copy.narrow(1, 0, weights.size(1)).copy_(weights);
    return copy;
  }

  void copy_weights() {
    if (of_.copies_weights) {
      weights_ = copy_of(arguments_.weight_hh, of_.h_stride());
      if (multiplies_gap()) {
        weights_.narrow(1, of_.state_size, of_.h_stride() - of_.state_size).zero_();
      }
    }
    if (of_.copies_weights_input) {
      weights_input_ = copy_of(arguments_.weight_ih, of_.input_stride());
    }
  }

  void copy_bias() {
    bias_ = biases_.of_saved ? *biases_.of_saved : contiguous_or_undefined(arguments_.bias);
    if (bias_.defined() && !Matrix{bias_.const_data_ptr(), 0}.starts_at_neighbors(4, of_.size)) {
      bias_ = bias_.clone();
    }
  }

  Tensor h_buffers(int64_t rows) const {
    const Tensor buffers =
        device_.empty({of_.h.buffers, rows, of_.h_stride()}, arguments_.input.scalar_type());
    return multiplies_gap() ? buffers.zero_() : buffers;
  }

  /// Writes the state that the rows start from, except what is read in place.
  void start_rows(int64_t first, int64_t rows, const Carried& h, const Carried& cell) const {
    auto start = start_of_rows<scalar_t>(arguments_, order_, first, rows);
    start.h[0] = h.start<scalar_t>(0);
    start.h[1] = h.start<scalar_t>(1);
    start.h_stride = of_.h_stride();
    start.cell = cell.start<float>(0);
    start.h_n = outputs_.h_n.mutable_data_ptr<scalar_t>() + first * of_.state_size;
    check_launch(launch_sequence_start(start, device_.stream()));
  }

  /// What all steps of some rows have in common.
  StepProblem step_of_rows(int64_t first, int64_t rows) const {
    StepProblem step{};
    static_cast<ForwardProblem&>(step) =
        of_.problem(rows, {}, rows_of(arguments_.weight_hh), rows_of(arguments_.weight_ih));
    if (of_.copies_weights) {
      step.weights.data = weights_.const_data_ptr();
    }
    if (of_.copies_weights_input) {
      step.weights_input.data = weights_input_.const_data_ptr();
    }
    step.added = {data_or_null<scalar_t>(bias_), 0};
    step.bias = step.added.data;
    step.rows = rows_of_sequence(arguments_.lengths, arguments_.reset, first);
    step.h_n = outputs_.h_n.mutable_data_ptr<scalar_t>() + first * of_.state_size;
    return step;
  }

  /// z_x of some steps of some rows, or a copy of their input. The memory is undefined if the steps
  /// read the input in place.
  struct Chunk {
    Tensor memory;
    int64_t first_time = 0;
  };

  Chunk empty_chunk(int64_t rows) const {
    if (of_.chunk_row() == 0) {
      return {};
    }
    return {device_.empty(
        {of_.steps_a_chunk(rows), rows, of_.hoists_input() ? of_.gates : of_.input_stride()},
        arguments_.input.scalar_type())};
  }

  /// Fills the chunk of which k is the first step that is run.
  void fill(Chunk& chunk, int64_t k, int64_t first) const {
    const int64_t steps = std::min(chunk.memory.size(0), of_.steps - k);
    chunk.first_time = order_.first_time(k, steps);
    const Tensor to = chunk.memory.narrow(0, 0, steps);
    const Tensor input =
        arguments_.input.narrow(0, chunk.first_time, steps).narrow(1, first, to.size(1));
    if (of_.hoists_input()) {
      compute_input_product(to, input, of_inputs_, plan_.kernel.arithmetic, device_);
    } else {
      to.narrow(2, 0, of_.input_features).copy_(input);
    }
  }

  /// Gives step k its part of the input or of z_x, which may fill the chunk. Returns whether it
  /// did.
  bool give_input(StepProblem& step, int64_t k, int64_t first, Chunk& chunk) const {
    const int64_t t = order_.time_of(k);
    if (!chunk.memory.defined()) {
      const Tensor& input = arguments_.input;
      step.input = rows_of(input).from(t * input.stride(0) + first * input.stride(1), of_.size);
      return false;
    }
    const bool starts_chunk = k % chunk.memory.size(0) == 0;
    if (starts_chunk) {
      fill(chunk, k, first);
    }
    const Matrix part{address_of(chunk.memory, t - chunk.first_time, 0), chunk.memory.size(2)};
    (of_.hoists_input() ? step.added : step.input) = part;
    return starts_chunk;
  }

  /// Runs the rows [first, first + count) of the batch, for all steps.
  void run_rows(int64_t first, int64_t count) const {
    const Tensor c_n = outputs_.c_n.narrow(0, first, count);
    const Carried h(of_.h, arguments_.h0, outputs_.output, h_buffers(count), order_, first);
    const Tensor cell_buffers = of_.cell.buffers > 0
                                    ? device_.empty({1, count, of_.state_size}, at::kFloat)
                                    : c_n.unsqueeze(0);
    const Carried cell(of_.cell, arguments_.c0, outputs_.cells, cell_buffers, order_, first);
    if (of_.has_start()) {
      start_rows(first, count, h, cell);
    }
    Chunk chunk = empty_chunk(count);
    StepProblem step = step_of_rows(first, count);
    for (int64_t k = 0; k < of_.steps; ++k) {
      const bool is_last = k + 1 == of_.steps;
      const int64_t t = order_.time_of(k);
      const bool filled_chunk = give_input(step, k, first, chunk);
      step.follows_a_step = k > 0 && !filled_chunk;
      step.t = t;
      step.next_t = order_.next_time(k);
      step.old_h = h.before(k);
      step.next_h = h.after(k);
      step.old_cell = cell.before(k);
      step.next_cell = const_cast<void*>((is_last ? cell.buffer(k) : cell.after(k)).data);
      step.new_h = address_of(outputs_.output, t, first);
      step.new_cell = is_last && of_.last_step_writes_c_n ? c_n.mutable_data_ptr()
                                                          : address_of(outputs_.cells, t, first);
      step.gates = address_of(outputs_.gates, t, first);
      check_launch(launch_forward(plan_.kernel, step, device_.stream()));
    }
    if (of_.cell.buffers > 0 && !of_.last_step_writes_c_n) {
      c_n.copy_(cell_buffers.squeeze(0));
    }
  }

  const StepsPlan& plan_;
  const StepsLayout& of_ = plan_.layout;
  const SequenceOutputs& outputs_;
  const RecurrentArguments& arguments_;
  const Device& device_;
  const StepOrder order_;
  Tensor weights_, weights_input_;  // if copied
  Tensor bias_;                     // of what is saved: contiguous, or undefined
  const Biases biases_{arguments_, device_};
  const RecurrentArguments of_inputs_ = arguments_.with_bias(biases_.of_inputs);
};

}  // namespace

void run_steps(const StepsPlan& plan,
               const SequenceOutputs& outputs,
               const RecurrentArguments& arguments,
               const Device& device,
               bool reverse) {
  with_scalar(arguments.input.scalar_type(), [&]<typename scalar_t>() {
    StepsForward<scalar_t>(plan, outputs, arguments, device, reverse).run();
  });
}

}  // namespace lltm::cuda
