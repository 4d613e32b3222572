// The steps of a sequence, and which rows of its batch run them.
#pragma once

#include "../dispatch/optional_tensor.h"
#include "../operators/recurrent.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <optional>
#include <vector>

namespace lltm::cpu {

/// The steps of a sequence, and the order in which a row runs them.
struct Steps {
  int64_t count;
  int64_t batch;
  const int64_t* lengths;  // (batch), clamped to 0..count here, or null for all steps
  const bool* reset;       // (count, batch), or null for never
  bool reverse;

  int64_t length(int64_t row) const {
    return lengths ? std::clamp<int64_t>(lengths[row], 0, count) : count;
  }
  /// The i-th step that a row of full length runs.
  int64_t step(int64_t i) const { return reverse ? count - 1 - i : i; }
  bool runs(int64_t step, int64_t row) const { return step < length(row); }
  bool resets(int64_t step, int64_t row) const { return reset && reset[step * batch + row]; }
  bool is_first(int64_t step, int64_t row) const {
    return reverse ? step == length(row) - 1 : step == 0;
  }
  /// The step that a row runs before `step`, which is not its first.
  int64_t before(int64_t step) const { return reverse ? step + 1 : step - 1; }

  /// The h or c, a row of `columns` elements, that a step starts from: that of `initial`, (batch,
  /// columns), at the row's first step, null after a reset, else that of `results`, (count, batch,
  /// columns), of the step that was run before. Null also if `initial` is. Null stands for zeros.
  template <typename scalar_t>
  const scalar_t* start_of(int64_t step,
                           int64_t row,
                           int64_t columns,
                           const scalar_t* initial,
                           const scalar_t* results) const {
    if (resets(step, row)) {
      return nullptr;
    }
    if (is_first(step, row)) {
      return initial ? initial + row * columns : nullptr;
    }
    return results + (before(step) * batch + row) * columns;
  }
};

/// The steps of a call, and the tensors that they point into.
struct CallSteps {
  template <typename Arguments>
  CallSteps(const Arguments& arguments, bool reverse)
      : lengths(contiguous_or_undefined(int64_lengths(arguments.lengths))),
        reset(contiguous_or_undefined(arguments.reset)),
        steps{.count = arguments.input.size(0),
              .batch = arguments.input.size(1),
              .lengths = data_or_null<int64_t>(lengths),
              .reset = data_or_null<bool>(reset),
              .reverse = reverse} {}

  const at::Tensor lengths, reset;  // before steps, which points into them
  const Steps steps;
};

/// Steps beyond a row's length are not run; what they would write is zero.
inline void zero_if_not_run(const std::optional<at::Tensor>& lengths,
                            std::initializer_list<at::Tensor> steps) {
  for (at::Tensor tensor : steps) {
    if (is_given(lengths) && tensor.defined()) {
      tensor.zero_();
    }
  }
}

/// Sorts the rows by length, longest first, into places. The rows that run a step then have its
/// first running(step) places, in either direction of time. Rows of equal length keep their order:
/// without lengths, a row's place is its index.
class Schedule {
 public:
  explicit Schedule(const Steps& steps_) : steps(steps_) {
    if (!has_lengths()) {
      return;
    }
    rows_.resize(steps.batch);
    std::iota(rows_.begin(), rows_.end(), int64_t{0});
    std::stable_sort(rows_.begin(), rows_.end(), [&](int64_t a, int64_t b) {
      return steps.length(a) > steps.length(b);
    });
    places_.resize(steps.batch);
    for (int64_t place = 0; place < steps.batch; ++place) {
      places_[rows_[place]] = place;
    }
    running_.resize(steps.count);
    int64_t places = steps.batch;
    for (int64_t step = 0; step < steps.count; ++step) {
      while (places > 0 && !steps.runs(step, rows_[places - 1])) {
        --places;
      }
      running_[step] = places;
    }
  }

  bool has_lengths() const { return steps.lengths != nullptr; }
  int64_t row(int64_t place) const { return has_lengths() ? rows_[place] : place; }
  int64_t place(int64_t row) const { return has_lengths() ? places_[row] : row; }
  /// How many rows run a step.
  int64_t running(int64_t step) const { return has_lengths() ? running_[step] : steps.batch; }

  const Steps steps;

 private:
  std::vector<int64_t> rows_, places_, running_;
};

}  // namespace lltm::cpu
