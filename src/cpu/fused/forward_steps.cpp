#include "forward_steps.h"

#include "../kernel_arguments.h"
#include "../parallel.h"
#include "../scratch.h"
#include "run_rows.h"

#include <algorithm>
#include <vector>

namespace lltm::cpu {
namespace {

/// The input is multiplied for several steps at once. With this many rows, a panel of weights and
/// the results stay in the cache.
constexpr int64_t kRowsPerChunk = 128;

template <typename scalar_t>
struct PackedWeights {
  explicit PackedWeights(const SequenceForward<scalar_t>& s)
      : hh(packed_gates_size<scalar_t>(s.cell, s.state_size, s.weight_hh.columns)),
        ih(packed_gates_size<scalar_t>(s.cell, s.state_size, s.weight_ih.columns)) {
    const auto& kernels = sequence_kernels<scalar_t>(s.cell);
    const auto pack = [&](const WeightColumns<scalar_t>& weights,
                          const Scratch<accumulate_t<scalar_t>>& panels,
                          int64_t begin,
                          int64_t end) {
      kernels.pack_gates({.weights = weights.data,
                          .weights_stride = weights.stride,
                          .state_size = s.state_size,
                          .terms = weights.columns,
                          .panels = panels.data()},
                         begin,
                         end);
    };
    for_each_task(kernels.groups(s.state_size),
                  s.gate_columns * (s.weight_hh.columns + s.weight_ih.columns),
                  kShortCopies,
                  [&](int64_t begin, int64_t end) {
                    pack(s.weight_hh, hh, begin, end);
                    pack(s.weight_ih, ih, begin, end);
                  });
  }

  Scratch<accumulate_t<scalar_t>> hh, ih;
};

/// Runs all steps of some rows of the batch, in a separate workspace.
template <typename scalar_t>
class ForwardRows {
  using real = accumulate_t<scalar_t>;

 public:
  ForwardRows(const SequenceForward<scalar_t>& sequence,
              const PackedWeights<scalar_t>& weights,
              int64_t rows_at_once,
              int64_t first_row,
              int64_t last_row)
      : s_(sequence),
        weights_(weights),
        first_row_(first_row),
        last_row_(last_row),
        padded_(kernels_.padded_state_size(s_.state_size)),
        z_size_(kernels_.gate_row_size(s_.state_size)),
        steps_per_chunk_(
            std::clamp<int64_t>(std::min(kRowsPerChunk, rows_at_once) / (last_row_ - first_row_),
                                1,
                                std::max<int64_t>(1, s_.steps.count))),
        x_(s_.input.feature_stride == 1
               ? 0
               : steps_per_chunk_ * (last_row_ - first_row_) * s_.input.features),
        z_(steps_per_chunk_ * (last_row_ - first_row_) * z_size_),
        cells_((last_row_ - first_row_) * padded_),
        zeros_(s_.state_size) {
    std::fill_n(zeros_.data(), s_.state_size, scalar_t(0));
  }

  static int64_t bytes_per_row(const SequenceForward<scalar_t>& s) {
    const auto& kernels = sequence_kernels<scalar_t>(s.cell);
    const int64_t input_elements = s.input.feature_stride == 1 ? 0 : s.input.features;
    const int64_t state_elements =
        kernels.gate_row_size(s.state_size) + kernels.padded_state_size(s.state_size);
    return input_elements * static_cast<int64_t>(sizeof(scalar_t)) +
           state_elements * static_cast<int64_t>(sizeof(real));
  }

  /// run_tasks(tasks, multiplications, kernel) runs the tasks of a kernel.
  template <typename RunTasks>
  void run(const RunTasks& run_tasks) {
    const int64_t groups = kernels_.groups(s_.state_size);
    start_cells();
    for (int64_t first = 0; first < s_.steps.count; first += steps_per_chunk_) {
      const int64_t last = std::min(first + steps_per_chunk_, s_.steps.count);
      collect_rows(first, last);
      if (rows_.empty()) {
        continue;
      }
      const InputGatesParams<scalar_t> input{.state_size = s_.state_size,
                                             .input_features = s_.input.features,
                                             .panels = weights_.ih.data(),
                                             .bias = s_.bias,
                                             .bias_hh = s_.bias_hh,
                                             .rows = rows_.data(),
                                             .row_count = static_cast<int64_t>(rows_.size())};
      run_tasks(groups,
                multiplications(input.row_count, s_.gate_columns, s_.input.features),
                [&](int64_t begin, int64_t end) { kernels_.input_gates(input, begin, end); });
      for (int64_t i = first; i < last; ++i) {
        reset_cells(s_.steps.step(i));
        const ForwardStepParams<scalar_t> step{
            .state_size = s_.state_size,
            .panels = weights_.hh.data(),
            .rows = rows_.data() + offsets_[i - first],
            .row_count = offsets_[i - first + 1] - offsets_[i - first]};
        if (step.row_count > 0) {
          run_tasks(groups,
                    multiplications(step.row_count, s_.gate_columns, s_.state_size),
                    [&](int64_t begin, int64_t end) { kernels_.forward_step(step, begin, end); });
        }
      }
    }
    finish_state();
  }

 private:
  real* cell_of(int64_t row) { return cells_.data() + (row - first_row_) * padded_; }
  const scalar_t* start_of_h(int64_t row) const {
    return s_.h0 ? s_.h0 + row * s_.state_size : zeros_.data();
  }
  scalar_t* output(int64_t step, int64_t row) const {
    return s_.output + (step * s_.steps.batch + row) * s_.state_size;
  }

  void start_cells() {
    std::fill_n(cells_.data(), (last_row_ - first_row_) * padded_, real(0));
    for (int64_t row = first_row_; row < last_row_; ++row) {
      s_.c0.read(row, s_.state_size, cell_of(row));
    }
  }

  void reset_cells(int64_t step) {
    if (!s_.steps.reset) {
      return;
    }
    for (int64_t row = first_row_; row < last_row_; ++row) {
      if (s_.steps.runs(step, row) && s_.steps.resets(step, row)) {
        std::fill_n(cell_of(row), padded_, real(0));
      }
    }
  }

  /// Collects the rows that run in each of the steps [first, last), counted in the order of
  /// execution. Zeroes the results of the rows that do not.
  void collect_rows(int64_t first, int64_t last) {
    rows_.clear();
    offsets_.assign(1, 0);
    for (int64_t i = first; i < last; ++i) {
      const int64_t step = s_.steps.step(i);
      for (int64_t row = first_row_; row < last_row_; ++row) {
        const int64_t at = step * s_.steps.batch + row;
        scalar_t* new_cell = s_.cells ? s_.cells + at * s_.state_size : nullptr;
        scalar_t* gates = s_.gates ? s_.gates + at * s_.saved_columns : nullptr;
        if (!s_.steps.runs(step, row)) {
          clear(output(step, row), s_.state_size);
          clear(new_cell, s_.state_size);
          clear(gates, s_.saved_columns);
          continue;
        }
        const scalar_t* const old_h = s_.steps.start_of(step, row, s_.state_size, s_.h0, s_.output);
        rows_.push_back({.input = s_.input.rows.at(step, row),
                         .old_h = old_h ? old_h : zeros_.data(),
                         .z = z_.data() + static_cast<int64_t>(rows_.size()) * z_size_,
                         .cell = cell_of(row),
                         .new_h = output(step, row),
                         .new_cell = new_cell,
                         .gates = gates});
      }
      offsets_.push_back(static_cast<int64_t>(rows_.size()));
    }
    if (s_.input.feature_stride != 1) {
      copy_inputs();
    }
  }

  /// Makes the features of the collected rows contiguous. A copy of the whole input might not fit
  /// the workspace that a call may take.
  void copy_inputs() {
    // Where time is the innermost dimension, the rows share the cache lines of these features.
    constexpr int64_t kFeaturesAtOnce = 16;
    const int64_t features = s_.input.features;
    for (int64_t first = 0; first < features; first += kFeaturesAtOnce) {
      const int64_t last = std::min(first + kFeaturesAtOnce, features);
      scalar_t* to = x_.data();
      for (const ForwardRow<scalar_t>& row : rows_) {
        for (int64_t k = first; k < last; ++k) {
          to[k] = row.input[k * s_.input.feature_stride];
        }
        to += features;
      }
    }
    const scalar_t* copy = x_.data();
    for (ForwardRow<scalar_t>& row : rows_) {
      row.input = copy;
      copy += features;
    }
  }

  static void clear(scalar_t* to, int64_t count) {
    if (to) {
      std::fill_n(to, count, scalar_t(0));
    }
  }

  void finish_state() {
    for (int64_t row = first_row_; row < last_row_; ++row) {
      if (s_.h_n) {
        const int64_t length = s_.steps.length(row);
        const scalar_t* h =
            length > 0 ? output(s_.steps.reverse ? 0 : length - 1, row) : start_of_h(row);
        std::copy_n(h, s_.state_size, s_.h_n + row * s_.state_size);
      }
      s_.c_n.write(row, s_.state_size, cell_of(row));
    }
  }

  const SequenceForward<scalar_t>& s_;
  const SequenceKernels<scalar_t>& kernels_ = sequence_kernels<scalar_t>(s_.cell);
  const PackedWeights<scalar_t>& weights_;
  const int64_t first_row_;
  const int64_t last_row_;
  const int64_t padded_;
  const int64_t z_size_;
  const int64_t steps_per_chunk_;
  Scratch<scalar_t> x_;
  Scratch<real> z_;
  Scratch<real> cells_;
  Scratch<scalar_t> zeros_;
  std::vector<ForwardRow<scalar_t>> rows_;
  std::vector<int64_t> offsets_;
};

}  // namespace

template <typename scalar_t>
void run(const SequenceForward<scalar_t>& sequence) {
  const PackedWeights<scalar_t> weights(sequence);
  const int64_t rows_per_tile = sequence_kernels<scalar_t>(sequence.cell).rows_per_tile;
  const int64_t bytes_per_row = ForwardRows<scalar_t>::bytes_per_row(sequence);
  run_rows(SequenceWork{.batch = sequence.steps.batch,
                        .steps = sequence.steps.count,
                        .multiplications_per_row =
                            sequence.gate_columns * (sequence.state_size + sequence.input.features),
                        .multiplications_per_step = multiplications(
                            sequence.steps.batch, sequence.gate_columns, sequence.state_size),
                        .rows_per_tile = rows_per_tile,
                        .rows_at_once = rows_that_fit(bytes_per_row, rows_per_tile)},
           [&](int64_t first, int64_t last, int64_t rows_at_once, const auto& run_tasks) {
             ForwardRows<scalar_t>(sequence, weights, rows_at_once, first, last).run(run_tasks);
           });
}

template void run(const SequenceForward<double>&);
template void run(const SequenceForward<float>&);
template void run(const SequenceForward<c10::Half>&);
template void run(const SequenceForward<c10::BFloat16>&);

}  // namespace lltm::cpu
