// Which steps the rows of a block run.
#pragma once

#include "../../ptx/device_function.h"
#include "../../ptx/global.cuh"
#include "../../step_problem.h"

#include <cstdint>

namespace lltm::cuda {

/// The steps of a launch in order of execution, [first, last), and those of them at which any row
/// of the block runs, [begin, end). Rows start together and end on their own or, in reverse, start
/// on their own and end together.
struct RecurrenceSteps {
  int steps, first, last, begin, end;
  bool reverse;

  LLTM_DEVICE int time_of(int k) const { return reverse ? steps - 1 - k : k; }
};

/// How many steps of a row count.
LLTM_DEVICE int length_of(const RowsOfSequence& rows, int64_t row, int steps) {
  const int64_t length = rows.length_of(row);
  return static_cast<int>(length < 0 ? 0 : length < steps ? length : steps);
}

/// The steps of a block that has the rows [first_row, first_row + count). All threads look at all
/// of its rows, which are few.
LLTM_DEVICE RecurrenceSteps recurrence_steps(const RowsOfSequence& rows,
                                             int64_t first_row,
                                             int count,
                                             int steps,
                                             int first,
                                             int last,
                                             bool reverse) {
  RecurrenceSteps of{steps, first, last, first, last, reverse};
  if (rows.lengths != nullptr) {
    int longest = 0;
#pragma unroll 1
    for (int row = 0; row < count; ++row) {
      longest = max(longest, length_of(rows, first_row + row, steps));
    }
    if (reverse) {
      of.begin = min(max(first, steps - longest), last);
    } else {
      of.end = max(min(last, longest), first);
    }
  }
  return of;
}

/// Which of a thread's neighboring rows are reset at a step. The bytes are read a step ahead, all
/// at once, and nothing waits for them until they are tested.
template <int kRows>
class FetchedResets {
 public:
  /// Starts reading those of the rows that run at t, if that time is `inside` those that are run.
  LLTM_DEVICE void fetch(const RowsOfSequence& rows,
                         int64_t first_row,
                         const int (&lengths)[kRows],
                         int t,
                         bool inside) {
    if (rows.reset == nullptr) {
      return;
    }
    const bool* const from =
        rows.reset + t * rows.reset_strides[0] + first_row * rows.reset_strides[1];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      load_byte_once(is_reset_[i], from + i * rows.reset_strides[1], inside && t < lengths[i]);
    }
  }
  LLTM_DEVICE bool operator[](int row) const { return is_reset_[row] != 0; }

 private:
  uint32_t is_reset_[kRows] = {};
};

}  // namespace lltm::cuda
