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
      : s(sequence),
        weights(weights),
        first_row(first_row),
        last_row(last_row),
        padded(kernels.padded_state_size(s.state_size)),
        z_size(kernels.gate_row_size(s.state_size)),
        steps_per_chunk(
            std::clamp<int64_t>(std::min(kRowsPerChunk, rows_at_once) / (last_row - first_row),
                                1,
                                std::max<int64_t>(1, s.steps.count))),
        x(s.input.feature_stride == 1
              ? 0
              : steps_per_chunk * (last_row - first_row) * s.input.features),
        z(steps_per_chunk * (last_row - first_row) * z_size),
        cells((last_row - first_row) * padded),
        zeros(s.state_size) {
    std::fill_n(zeros.data(), s.state_size, scalar_t(0));
  }

  static int64_t bytes_per_row(const SequenceForward<scalar_t>& s) {
    const auto& kernels = sequence_kernels<scalar_t>(s.cell);
    const int64_t of_input = s.input.feature_stride == 1 ? 0 : s.input.features;
    const int64_t of_state =
        kernels.gate_row_size(s.state_size) + kernels.padded_state_size(s.state_size);
    return of_input * static_cast<int64_t>(sizeof(scalar_t)) +
           of_state * static_cast<int64_t>(sizeof(real));
  }

  /// spread(tasks, multiplications, kernel) runs the tasks of a kernel.
  template <typename Spread>
  void run(const Spread& spread) {
    const int64_t groups = kernels.groups(s.state_size);
    start_cells();
    for (int64_t first = 0; first < s.steps.count; first += steps_per_chunk) {
      const int64_t last = std::min(first + steps_per_chunk, s.steps.count);
      collect_rows(first, last);
      if (rows.empty()) {
        continue;
      }
      const InputGatesParams<scalar_t> input{.state_size = s.state_size,
                                             .input_features = s.input.features,
                                             .panels = weights.ih.data(),
                                             .bias = s.bias,
                                             .rows = rows.data(),
                                             .row_count = static_cast<int64_t>(rows.size())};
      spread(groups,
             multiplications(input.row_count, s.gate_columns, s.input.features),
             [&](int64_t begin, int64_t end) { kernels.input_gates(input, begin, end); });
      for (int64_t i = first; i < last; ++i) {
        reset_cells(s.steps.step(i));
        const ForwardStepParams<scalar_t> step{
            .state_size = s.state_size,
            .panels = weights.hh.data(),
            .rows = rows.data() + offsets[i - first],
            .row_count = offsets[i - first + 1] - offsets[i - first]};
        if (step.row_count > 0) {
          spread(groups,
                 multiplications(step.row_count, s.gate_columns, s.state_size),
                 [&](int64_t begin, int64_t end) { kernels.forward_step(step, begin, end); });
        }
      }
    }
    finish_state();
  }

 private:
  real* cell_of(int64_t row) { return cells.data() + (row - first_row) * padded; }
  const scalar_t* start_of_h(int64_t row) const {
    return s.h0 ? s.h0 + row * s.state_size : zeros.data();
  }
  scalar_t* output(int64_t step, int64_t row) const {
    return s.output + (step * s.steps.batch + row) * s.state_size;
  }

  void start_cells() {
    std::fill_n(cells.data(), (last_row - first_row) * padded, real(0));
    for (int64_t row = first_row; row < last_row; ++row) {
      s.c0.read(row, s.state_size, cell_of(row));
    }
  }

  void reset_cells(int64_t step) {
    if (!s.steps.reset) {
      return;
    }
    for (int64_t row = first_row; row < last_row; ++row) {
      if (s.steps.runs(step, row) && s.steps.resets(step, row)) {
        std::fill_n(cell_of(row), padded, real(0));
      }
    }
  }

  /// Collects the rows that run in each of the steps [first, last), counted in the order of
  /// execution. Zeroes the results of the rows that do not.
  void collect_rows(int64_t first, int64_t last) {
    rows.clear();
    offsets.assign(1, 0);
    for (int64_t i = first; i < last; ++i) {
      const int64_t step = s.steps.step(i);
      for (int64_t row = first_row; row < last_row; ++row) {
        const int64_t at = step * s.steps.batch + row;
        scalar_t* new_cell = s.cells ? s.cells + at * s.state_size : nullptr;
        scalar_t* gates = s.gates ? s.gates + at * s.gate_columns : nullptr;
        if (!s.steps.runs(step, row)) {
          clear(output(step, row), s.state_size);
          clear(new_cell, s.state_size);
          clear(gates, s.gate_columns);
          continue;
        }
        const scalar_t* const old_h = s.steps.start_of(step, row, s.state_size, s.h0, s.output);
        rows.push_back({.input = s.input.rows.at(step, row),
                        .old_h = old_h ? old_h : zeros.data(),
                        .z = z.data() + static_cast<int64_t>(rows.size()) * z_size,
                        .cell = cell_of(row),
                        .new_h = output(step, row),
                        .new_cell = new_cell,
                        .gates = gates});
      }
      offsets.push_back(static_cast<int64_t>(rows.size()));
    }
    if (s.input.feature_stride != 1) {
      copy_inputs();
    }
  }

  /// Makes the features of the collected rows contiguous. A copy of the whole input might not fit
  /// the workspace that a call may take.
  void copy_inputs() {
    // Where time is the innermost dimension, the rows share the cache lines of these features.
    constexpr int64_t kFeaturesAtOnce = 16;
    const int64_t features = s.input.features;
    for (int64_t first = 0; first < features; first += kFeaturesAtOnce) {
      const int64_t last = std::min(first + kFeaturesAtOnce, features);
      scalar_t* to = x.data();
      for (const ForwardRow<scalar_t>& row : rows) {
        for (int64_t k = first; k < last; ++k) {
          to[k] = row.input[k * s.input.feature_stride];
        }
        to += features;
      }
    }
    const scalar_t* copy = x.data();
    for (ForwardRow<scalar_t>& row : rows) {
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
    for (int64_t row = first_row; row < last_row; ++row) {
      const int64_t length = s.steps.length(row);
      const scalar_t* h =
          length > 0 ? output(s.steps.reverse ? 0 : length - 1, row) : start_of_h(row);
      std::copy_n(h, s.state_size, s.h_n + row * s.state_size);
      s.c_n.write(row, s.state_size, cell_of(row));
    }
  }

  const SequenceForward<scalar_t>& s;
  const SequenceKernels<scalar_t>& kernels = sequence_kernels<scalar_t>(s.cell);
  const PackedWeights<scalar_t>& weights;
  const int64_t first_row;
  const int64_t last_row;
  const int64_t padded;
  const int64_t z_size;
  const int64_t steps_per_chunk;
  Scratch<scalar_t> x;
  Scratch<real> z;
  Scratch<real> cells;
  Scratch<scalar_t> zeros;
  std::vector<ForwardRow<scalar_t>> rows;
  std::vector<int64_t> offsets;
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
           [&](int64_t first, int64_t last, int64_t rows_at_once, const auto& spread) {
             ForwardRows<scalar_t>(sequence, weights, rows_at_once, first, last).run(spread);
           });
}

template void run(const SequenceForward<double>&);
template void run(const SequenceForward<float>&);
template void run(const SequenceForward<c10::Half>&);
template void run(const SequenceForward<c10::BFloat16>&);

}  // namespace lltm::cpu
