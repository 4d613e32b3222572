#include "gradient_products.h"
#include "kernel_arguments.h"
#include "scratch.h"
#include "sequence_steps.h"
#include "step_threads.h"

#include <algorithm>
#include <vector>

namespace lltm::cpu {
namespace {

/// Computes d_gates of all steps, and the gradients of the initial state, for some rows of the
/// batch.
template <typename scalar_t>
class BackwardRows {
  using real = accumulate_t<scalar_t>;

 public:
  BackwardRows(const SequenceBackward<scalar_t>& sequence,
               const real* panels,
               int64_t first_row,
               int64_t last_row)
      : s(sequence),
        panels(panels),
        first_row(first_row),
        last_row(last_row),
        padded(kernels.padded_state_size(s.state_size)),
        d_h((last_row - first_row) * padded),
        d_cell((last_row - first_row) * padded) {}

  /// spread(tasks, multiplications, kernel) runs the tasks of a kernel.
  template <typename Spread>
  void run(const Spread& spread) {
    start();
    for (int64_t i = s.steps.steps - 1; i >= 0; --i) {
      collect_rows(s.steps.step(i));
      run_step(spread);
      finish_step(s.steps.step(i));
    }
    if (s.d_h0) {
      rows.clear();
      run_step(spread);
    }
    finish();
  }

 private:
  real* of_row(const Scratch<real>& state, int64_t row) const {
    return state.data() + (row - first_row) * padded;
  }

  void start() {
    std::fill_n(d_h.data(), (last_row - first_row) * padded, real(0));
    std::fill_n(d_cell.data(), (last_row - first_row) * padded, real(0));
    for (int64_t row = first_row; row < last_row; ++row) {
      if (s.grad_h_n) {
        std::copy_n(s.grad_h_n + row * s.state_size, s.state_size, of_row(d_h, row));
      }
      if (s.grad_c_n) {
        std::copy_n(s.grad_c_n + row * s.state_size, s.state_size, of_row(d_cell, row));
      }
    }
  }

  void collect_rows(int64_t step) {
    rows.clear();
    for (int64_t row = first_row; row < last_row; ++row) {
      if (!s.steps.runs(step, row)) {
        continue;
      }
      const int64_t at = step * s.steps.batch + row;
      rows.push_back({.grad_output = s.grad_output ? s.grad_output + at * s.state_size : nullptr,
                      .grad_cells = s.grad_cells ? s.grad_cells + at * s.state_size : nullptr,
                      .gates = s.gates + at * 3 * s.state_size,
                      .new_cell = s.cells + at * s.state_size,
                      .d_h = of_row(d_h, row),
                      .d_cell = of_row(d_cell, row),
                      .d_gates = s.d_gates + at * 3 * s.state_size});
    }
  }

  template <typename Spread>
  void run_step(const Spread& spread) {
    const BackwardStepParams<scalar_t> params{
        .state_size = s.state_size,
        .panels = panels,
        .product_rows = product_rows.data(),
        .product_row_count = static_cast<int64_t>(product_rows.size()),
        .rows = rows.data(),
        .row_count = static_cast<int64_t>(rows.size())};
    if (params.product_row_count + params.row_count > 0) {
      spread(product_kernels<scalar_t>().column_panels(s.state_size),
             multiplications(params.product_row_count, 3 * s.state_size, s.state_size),
             [&](int64_t begin, int64_t end) { kernels.backward_step(params, begin, end); });
    }
  }

  /// Collects the rows whose d_h passes to the step that was run before `step`, and zeroes the
  /// gradients of the rows that `step` reset.
  void finish_step(int64_t step) {
    product_rows.clear();
    auto next = rows.begin();
    for (int64_t row = first_row; row < last_row; ++row) {
      if (!s.steps.runs(step, row)) {
        continue;
      }
      if (s.steps.resets(step, row)) {
        std::fill_n(next->d_h, padded, real(0));
        std::fill_n(next->d_cell, padded, real(0));
      } else {
        product_rows.push_back(*next);
      }
      ++next;
    }
  }

  void finish() {
    for (int64_t row = first_row; row < last_row; ++row) {
      if (s.d_h0) {
        std::copy_n(of_row(d_h, row), s.state_size, s.d_h0 + row * s.state_size);
      }
      if (s.d_c0) {
        std::copy_n(of_row(d_cell, row), s.state_size, s.d_c0 + row * s.state_size);
      }
    }
  }

  const SequenceKernels<scalar_t>& kernels = sequence_kernels<scalar_t>();
  const SequenceBackward<scalar_t>& s;
  const real* panels;
  const int64_t first_row;
  const int64_t last_row;
  const int64_t padded;
  Scratch<real> d_h;
  Scratch<real> d_cell;
  std::vector<BackwardRow<scalar_t>> rows;
  std::vector<BackwardRow<scalar_t>> product_rows;  // of the following step
};

/// The terms of the sums over all steps: every step that a row runs, with the state it started
/// from.
template <typename scalar_t>
std::vector<GradientRow<scalar_t>> gradient_rows(const SequenceBackward<scalar_t>& s,
                                                 const scalar_t* zeros) {
  std::vector<GradientRow<scalar_t>> rows;
  rows.reserve(s.steps.steps * s.steps.batch);
  for (int64_t step = 0; step < s.steps.steps; ++step) {
    for (int64_t row = 0; row < s.steps.batch; ++row) {
      if (!s.steps.runs(step, row)) {
        continue;
      }
      const int64_t at = step * s.steps.batch + row;
      const scalar_t* start = s.h0 ? s.h0 + row * s.state_size : zeros;
      rows.push_back(
          {.d_gates = s.d_gates + at * 3 * s.state_size,
           .old_h = s.steps.resets(step, row) ? zeros
                    : s.steps.is_first(step, row)
                        ? start
                        : s.output + (s.steps.before(step) * s.steps.batch + row) * s.state_size,
           .input = s.input.row(step, row)});
    }
  }
  return rows;
}

template <typename scalar_t>
std::vector<StateGradientRow<scalar_t>> input_gradient_rows(const SequenceBackward<scalar_t>& s) {
  std::vector<StateGradientRow<scalar_t>> rows;
  rows.reserve(s.steps.steps * s.steps.batch);
  for (int64_t step = 0; step < s.steps.steps; ++step) {
    for (int64_t row = 0; row < s.steps.batch; ++row) {
      const int64_t at = step * s.steps.batch + row;
      scalar_t* out = s.d_input + at * s.input.features;
      if (s.steps.runs(step, row)) {
        rows.push_back({.d_gates = s.d_gates + at * 3 * s.state_size, .out = out});
      } else {
        std::fill_n(out, s.input.features, scalar_t(0));
      }
    }
  }
  return rows;
}

}  // namespace

template <typename scalar_t>
void run(const SequenceBackward<scalar_t>& s) {
  {
    const auto panels = pack_columns<scalar_t>(
        {.data = s.weights, .stride = s.weights_stride, .columns = s.state_size}, 3 * s.state_size);
    run_rows(SequenceWork{.batch = s.steps.batch,
                          .steps = s.steps.steps,
                          .multiplications_per_row = 3 * s.state_size * s.state_size,
                          .multiplications_per_step =
                              multiplications(s.steps.batch, 3 * s.state_size, s.state_size),
                          .rows_per_tile = sequence_kernels<scalar_t>().rows_per_tile,
                          .rows_at_once = kMaxRowsAtOnce},
             [&](int64_t first, int64_t last, int64_t /*rows_at_once*/, const auto& spread) {
               BackwardRows<scalar_t>(s, panels.data(), first, last).run(spread);
             });
  }
  if (s.d_weights || s.d_bias) {
    const std::vector<scalar_t> zeros(s.state_size, scalar_t(0));
    const auto rows = gradient_rows(s, zeros.data());
    if (s.d_bias) {
      bias_gradient_out(rows, s.state_size, s.d_bias);
    }
    if (s.d_weights && rows.empty()) {
      std::fill_n(s.d_weights, 3 * s.state_size * (s.state_size + s.input.features), scalar_t(0));
    } else if (s.d_weights) {
      weight_gradient_out(rows, s.state_size, s.input.features, s.d_weights);
    }
  }
  if (s.d_input) {
    state_gradient_out<scalar_t>(input_gradient_rows(s),
                                 s.state_size,
                                 {.data = s.weights + s.state_size,
                                  .stride = s.weights_stride,
                                  .columns = s.input.features});
  }
}

template void run(const SequenceBackward<double>&);
template void run(const SequenceBackward<float>&);
template void run(const SequenceBackward<c10::Half>&);
template void run(const SequenceBackward<c10::BFloat16>&);

}  // namespace lltm::cpu
