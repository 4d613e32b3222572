#include "backward_steps.h"

#include "../kernel_arguments.h"
#include "../parallel.h"
#include "../scratch.h"
#include "gradient_products.h"
#include "run_rows.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace lltm::cpu {
namespace {

/// The steps that any row runs, counted in the order in which the forward ran them. A row that runs
/// a step is a row step.
class RunningSteps {
 public:
  explicit RunningSteps(const Steps& steps) : schedule(steps) {
    int64_t longest = 0;
    while (longest < steps.count && schedule.running(longest) > 0) {
      ++longest;
    }
    begin = steps.reverse ? steps.count - longest : 0;
    end = begin + longest;
    row_steps_before_.push_back(0);
    for (int64_t i = begin; i < end; ++i) {
      row_steps_before_.push_back(row_steps_before_.back() + schedule.running(steps.step(i)));
    }
  }

  int64_t row_steps(int64_t first, int64_t last) const {
    return row_steps_before_[last - begin] - row_steps_before_[first - begin];
  }

  /// The start of the most steps before `last` with at most `most` row steps, of one step at least.
  int64_t start_of(int64_t last, int64_t most) const {
    const auto end = row_steps_before_.begin() + (last - begin);
    const auto start = std::lower_bound(row_steps_before_.begin(), end, *end - most);
    return std::clamp<int64_t>(
        begin + (start - row_steps_before_.begin()), begin, std::max(begin, last - 1));
  }

  /// The same for parts of at most `most_of_part` row steps: the start of the most of them with at
  /// most `most` row steps together, of one part at least.
  int64_t start_of_parts(int64_t last, int64_t most_of_part, int64_t most) const {
    int64_t first = start_of(last, most_of_part);
    while (first > begin) {
      const int64_t next = start_of(first, most_of_part);
      if (row_steps(next, last) > most) {
        break;
      }
      first = next;
    }
    return first;
  }

  const Schedule schedule;
  int64_t begin, end;

 private:
  std::vector<int64_t> row_steps_before_;
};

/// Some successive steps, and d_gates of their row steps.
template <typename scalar_t>
struct ChunkSteps {
  const SequenceBackward<scalar_t>& sequence;
  const RunningSteps& steps;
  int64_t first, last;
  scalar_t* data;  // (row steps, columns_of(sequence)), or unused if the caller's d_gates are

  /// In a row are the d_gates that h takes and, if they are others, those that the input takes:
  /// each product reads its own without gaps.
  static int64_t columns_of(const SequenceBackward<scalar_t>& s) {
    return (s.cell.adds ? 1 : 2) * s.gate_columns;
  }
  static bool in_callers(const SequenceBackward<scalar_t>& s) { return s.d_gates && s.cell.adds; }

  scalar_t* d_gates(int64_t i, int64_t row) const {
    return in_callers(sequence) ? callers(i, row)
                                : data + (steps.row_steps(first, i) + steps.schedule.place(row)) *
                                             columns_of(sequence);
  }
  scalar_t* d_inputs(int64_t i, int64_t row) const {
    return d_gates(i, row) + (sequence.cell.adds ? 0 : sequence.gate_columns);
  }
  /// What only the caller wants, or null.
  scalar_t* d_saved(int64_t i, int64_t row) const {
    return sequence.d_gates && !sequence.cell.adds ? callers(i, row) : nullptr;
  }
  scalar_t* callers(int64_t i, int64_t row) const {
    return sequence.d_gates +
           (sequence.steps.step(i) * sequence.steps.batch + row) * sequence.saved_columns;
  }

  /// The steps from `begin` to `end`.
  ChunkSteps part(int64_t begin, int64_t end) const {
    return {
        sequence, steps, begin, end, data + steps.row_steps(first, begin) * columns_of(sequence)};
  }

  /// Calls visit(i, step, row) for every row step.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (int64_t i = first; i < last; ++i) {
      const int64_t step = sequence.steps.step(i);
      for (int64_t row = 0; row < sequence.steps.batch; ++row) {
        if (sequence.steps.runs(step, row)) {
          visit(i, step, row);
        }
      }
    }
  }
};

/// The gradients of the state that is passed between two steps, of all rows.
template <typename scalar_t>
struct CarriedGradients {
  using real = accumulate_t<scalar_t>;

  explicit CarriedGradients(const SequenceBackward<scalar_t>& s)
      : padded(sequence_kernels<scalar_t>(s.cell).padded_state_size(s.state_size)),
        h(s.steps.batch * padded),
        cell(s.steps.batch * padded) {}

  real* h_of(int64_t row) const { return h.data() + row * padded; }
  real* cell_of(int64_t row) const { return cell.data() + row * padded; }

  int64_t padded;
  Scratch<real> h, cell;
};

/// Computes d_gates of a chunk's steps for some rows of the batch, and after the last chunk, which
/// has the first steps, the gradients of the initial state.
template <typename scalar_t>
class BackwardRows {
  using real = accumulate_t<scalar_t>;

 public:
  BackwardRows(const SequenceBackward<scalar_t>& sequence,
               const real* panels,
               const CarriedGradients<scalar_t>& state,
               int64_t first_row,
               int64_t last_row)
      : s_(sequence), panels_(panels), state_(state), first_row_(first_row), last_row_(last_row) {}

  /// run_tasks(tasks, multiplications, kernel) runs the tasks of a kernel.
  template <typename RunTasks>
  void run(const ChunkSteps<scalar_t>& chunk,
           bool is_first,
           bool is_last,
           const RunTasks& run_tasks) {
    if (is_first) {
      start();
    }
    for (int64_t i = chunk.last - 1; i >= chunk.first; --i) {
      collect_rows(chunk, i);
      run_step(run_tasks);
      finish_step(s_.steps.step(i));
    }
    if (!is_last || s_.d_h0 || (s_.cell.carries_h && s_.d_c0.is_wanted())) {
      // The next chunk overwrites d_gates.
      rows_.clear();
      run_step(run_tasks);
    }
    if (is_last) {
      finish();
    }
  }

 private:
  void start() {
    std::fill_n(state_.h_of(first_row_), (last_row_ - first_row_) * state_.padded, real(0));
    std::fill_n(state_.cell_of(first_row_), (last_row_ - first_row_) * state_.padded, real(0));
    for (int64_t row = first_row_; row < last_row_; ++row) {
      if (s_.grad_h_n) {
        std::copy_n(s_.grad_h_n + row * s_.state_size, s_.state_size, state_.h_of(row));
      }
      s_.grad_c_n.read(row, s_.state_size, state_.cell_of(row));
    }
  }

  void collect_rows(const ChunkSteps<scalar_t>& chunk, int64_t i) {
    const int64_t step = s_.steps.step(i);
    rows_.clear();
    for (int64_t row = first_row_; row < last_row_; ++row) {
      if (!s_.steps.runs(step, row)) {
        continue;
      }
      const int64_t at = step * s_.steps.batch + row;
      rows_.push_back({.grad_output = s_.grad_output.at(step, row),
                       .grad_cells = s_.grad_cells.at(step, row),
                       .gates = s_.gates + at * s_.saved_columns,
                       .old_cell = s_.steps.start_of(step, row, s_.state_size, s_.c0, s_.cells),
                       .exact_old_cell = exact_old_cell(step, row),
                       .new_cell = s_.cells + at * s_.state_size,
                       .d_h = state_.h_of(row),
                       .d_cell = state_.cell_of(row),
                       .d_gates = chunk.d_gates(i, row),
                       .d_inputs = chunk.d_inputs(i, row),
                       .d_saved = chunk.d_saved(i, row)});
    }
  }

  const real* exact_old_cell(int64_t step, int64_t row) const {
    const bool starts = s_.steps.is_first(step, row) && !s_.steps.resets(step, row);
    return s_.exact_c0 && starts ? s_.exact_c0 + row * s_.state_size : nullptr;
  }

  template <typename RunTasks>
  void run_step(const RunTasks& run_tasks) {
    const BackwardStepParams<scalar_t> params{
        .state_size = s_.state_size,
        .panels = panels_,
        .product_rows = product_rows_.data(),
        .product_row_count = static_cast<int64_t>(product_rows_.size()),
        .rows = rows_.data(),
        .row_count = static_cast<int64_t>(rows_.size())};
    if (params.product_row_count + params.row_count > 0) {
      run_tasks(product_kernels<scalar_t>().column_panels(s_.state_size),
                multiplications(params.product_row_count, s_.gate_columns, s_.state_size),
                [&](int64_t begin, int64_t end) { kernels_.backward_step(params, begin, end); });
    }
  }

  /// Collects the rows whose d_h passes to the step that was run before `step`, and zeroes the
  /// gradients of the rows that `step` reset.
  void finish_step(int64_t step) {
    product_rows_.clear();
    auto next = rows_.begin();
    for (int64_t row = first_row_; row < last_row_; ++row) {
      if (!s_.steps.runs(step, row)) {
        continue;
      }
      if (s_.steps.resets(step, row)) {
        std::fill_n(next->d_h, state_.padded, real(0));
        std::fill_n(next->d_cell, state_.padded, real(0));
      } else {
        product_rows_.push_back(*next);
      }
      ++next;
    }
  }

  void finish() {
    for (int64_t row = first_row_; row < last_row_; ++row) {
      if (s_.d_h0) {
        std::copy_n(state_.h_of(row), s_.state_size, s_.d_h0 + row * s_.state_size);
      }
      for (int64_t i = 0; s_.cell.carries_h && i < s_.state_size; ++i) {
        state_.cell_of(row)[i] += state_.h_of(row)[i];
      }
      s_.d_c0.write(row, s_.state_size, state_.cell_of(row));
    }
  }

  const SequenceBackward<scalar_t>& s_;
  const SequenceKernels<scalar_t>& kernels_ = sequence_kernels<scalar_t>(s_.cell);
  const real* panels_;
  const CarriedGradients<scalar_t>& state_;
  const int64_t first_row_;
  const int64_t last_row_;
  std::vector<BackwardRow<scalar_t>> rows_;
  std::vector<BackwardRow<scalar_t>> product_rows_;  // of the following step
};

/// The rows of the sums over a chunk: every row step, with the state it started from.
template <typename scalar_t>
std::vector<GradientRow<scalar_t>> gradient_rows(const ChunkSteps<scalar_t>& chunk,
                                                 const scalar_t* zeros) {
  const SequenceBackward<scalar_t>& s = chunk.sequence;
  std::vector<GradientRow<scalar_t>> rows;
  rows.reserve(chunk.steps.row_steps(chunk.first, chunk.last));
  chunk.for_each([&](int64_t i, int64_t step, int64_t row) {
    const scalar_t* const old_h = s.steps.start_of(step, row, s.state_size, s.h0, s.output);
    rows.push_back({.d_gates = chunk.d_gates(i, row),
                    .old_h = old_h ? old_h : zeros,
                    .input = s.input.rows.at(step, row)});
  });
  return rows;
}

template <typename scalar_t>
std::vector<GateProductRow<scalar_t>> input_gradient_rows(const ChunkSteps<scalar_t>& chunk) {
  const SequenceBackward<scalar_t>& s = chunk.sequence;
  std::vector<GateProductRow<scalar_t>> rows;
  rows.reserve(chunk.steps.row_steps(chunk.first, chunk.last));
  chunk.for_each([&](int64_t i, int64_t step, int64_t row) {
    rows.push_back({.d_gates = chunk.d_inputs(i, row),
                    .out = s.d_input + (step * s.steps.batch + row) * s.input.features});
  });
  return rows;
}

/// The row steps that are added to d_weights at a time: as many as a sum takes whose d_gates stay
/// in the L2 cache. It does not depend on the number of threads, and neither do the bits.
template <typename scalar_t>
int64_t row_steps_of_sum(const SequenceBackward<scalar_t>& s) {
  constexpr int64_t kBytes = 512 << 10;
  const int64_t row_steps = product_kernels<scalar_t>().max_rows_per_sum;
  const int64_t bytes =
      row_steps * ChunkSteps<scalar_t>::columns_of(s) * static_cast<int64_t>(sizeof(scalar_t));
  return row_steps * std::max<int64_t>(1, kBytes / bytes);
}

}  // namespace

// In chunks of time: the products of a chunk follow its steps while its d_gates are in the caches
// of all threads. The products take a chunk in parts, one for each sum.
template <typename scalar_t>
void run(const SequenceBackward<scalar_t>& s) {
  const RunningSteps steps(s.steps);
  const int64_t begin = steps.begin, end = steps.end;
  const int64_t all_row_steps = steps.row_steps(begin, end);
  const int64_t row_steps_at_once = row_steps_of_sum(s);
  const int64_t row_steps_of_chunk = row_steps_at_once * threads_of_sequence();
  // A step is not divided.
  const auto most_row_steps = [&](int64_t wanted) {
    return std::min(all_row_steps, std::max(wanted, s.steps.batch));
  };
  using Chunk = ChunkSteps<scalar_t>;
  const Scratch<scalar_t> d_gates(
      Chunk::in_callers(s) ? 0 : most_row_steps(row_steps_of_chunk) * Chunk::columns_of(s));
  const std::vector<scalar_t> zeros(s.state_size, scalar_t(0));

  const auto panels = pack_columns<scalar_t>(s.weight_hh, s.gate_columns);
  const CarriedGradients<scalar_t> state(s);
  const auto parameters_of = [&](const GradientBlock<scalar_t>& d_weight_hh,
                                 const GradientBlock<scalar_t>& d_weight_ih,
                                 scalar_t* d_bias) {
    return ParameterGradients<scalar_t>(
        s.gate_columns,
        s.state_size,
        s.input.features,
        most_row_steps(row_steps_at_once),
        /*in_one_call=*/steps.start_of(end, row_steps_at_once) == begin,
        d_weight_hh,
        d_weight_ih,
        d_bias);
  };
  // With two sides, the parameters of the inputs are apart.
  const bool apart = !s.cell.adds;
  ParameterGradients<scalar_t> parameters =
      parameters_of(s.d_weight_hh,
                    apart ? GradientBlock<scalar_t>{} : s.d_weight_ih,
                    apart ? s.d_bias_hh : s.d_bias);
  std::optional<ParameterGradients<scalar_t>> input_parameters;
  if (apart && (s.d_weight_ih.data || s.d_bias)) {
    input_parameters.emplace(parameters_of({}, s.d_weight_ih, s.d_bias));
  }
  std::optional<GateProduct<scalar_t>> input;
  if (s.d_input) {
    input.emplace(s.gate_columns, s.weight_ih, all_row_steps);
  }
  int64_t last = end;
  do {
    const int64_t first = steps.start_of_parts(last, row_steps_at_once, row_steps_of_chunk);
    const ChunkSteps<scalar_t> chunk{s, steps, first, last, d_gates.data()};
    // Whether the work is short depends on all steps: a chunk follows another one.
    run_rows(SequenceWork{.batch = s.steps.batch,
                          .steps = end - begin,
                          .multiplications_per_row = s.gate_columns * s.state_size,
                          .multiplications_per_step =
                              multiplications(s.steps.batch, s.gate_columns, s.state_size),
                          .rows_per_tile = sequence_kernels<scalar_t>(s.cell).rows_per_tile,
                          .rows_at_once = kMaxRowsAtOnce},
             [&](int64_t first, int64_t last, int64_t /*rows_at_once*/, const auto& run_tasks) {
               BackwardRows<scalar_t>(s, panels.data(), state, first, last)
                   .run(chunk, chunk.last == end, chunk.first == begin, run_tasks);
             });
    do {
      const int64_t start = steps.start_of(last, row_steps_at_once);
      const auto part = chunk.part(start, last);
      if (s.d_weight_hh.data || s.d_weight_ih.data || s.d_bias || s.d_bias_hh) {
        auto rows = gradient_rows(part, zeros.data());
        parameters.add(rows, last == end, start == begin);
        if (input_parameters) {
          for (GradientRow<scalar_t>& row : rows) {
            row.d_gates += s.gate_columns;
          }
          input_parameters->add(rows, last == end, start == begin);
        }
      }
      if (input) {
        input->write(input_gradient_rows(part));
      }
      last = start;
    } while (last > chunk.first);
  } while (last > begin);
}

template void run(const SequenceBackward<double>&);
template void run(const SequenceBackward<float>&);
template void run(const SequenceBackward<c10::Half>&);
template void run(const SequenceBackward<c10::BFloat16>&);

}  // namespace lltm::cpu
