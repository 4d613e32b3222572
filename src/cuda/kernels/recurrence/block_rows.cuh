// Which rows of a block run at a time of the sequence, and which are reset then.
#pragma once

#include "../../ptx/global.cuh"
#include "../../step_problem.h"

#include <cstdint>

namespace lltm::cuda {

/// At most 32 rows, seen by a warp: each lane knows one of them, and masks have a bit for each. All
/// lanes of a warp call the functions together.
class BlockRows {
 public:
  /// For `count` rows from `first` on. Lengths are clamped to `steps`.
  LLTM_DEVICE BlockRows(const RowsOfSequence& rows, int64_t first, int count, int steps) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane < count) {
      length_ =
          static_cast<int>(max(min(rows.length_of(first + lane), int64_t{steps}), int64_t{0}));
    }
    longest_ = __reduce_max_sync(~0u, length_);
    if (rows.reset != nullptr) {
      resets_ = rows.reset + (first + lane) * rows.reset_strides[1];
      time_stride_ = rows.reset_strides[0];
      reset_length_ = length_;
    }
  }

  /// From this time on no row runs.
  LLTM_DEVICE int longest() const { return longest_; }

  LLTM_DEVICE uint32_t running(int t) const { return __ballot_sync(~0u, t < length_); }

  /// Starts reading which rows are reset at t, if that time is `inside` those that are run.
  LLTM_DEVICE void fetch_resets(int t, bool inside) {
    load_byte_once(is_reset_, resets_ + t * time_stride_, inside && t < reset_length_);
  }
  /// Those of the rows running at the time fetched last that are reset then.
  LLTM_DEVICE uint32_t resets() const { return __ballot_sync(~0u, is_reset_ != 0); }

 private:
  int length_ = 0, longest_;  // of the lane's row, and of all
  int reset_length_ = 0;      // zero without resets
  const bool* resets_ = nullptr;
  int64_t time_stride_ = 0;
  uint32_t is_reset_ = 0;  // a byte that nothing waits for until it is needed
};

/// The times from first_time to end_time, in the order in which a block runs them.
struct BlockTimes {
  int first, step, count;

  LLTM_DEVICE BlockTimes(int first_time, int end_time, bool backwards)
      : step(backwards ? -1 : 1), count(max(end_time - first_time, 0)) {
    first = backwards ? end_time - 1 : first_time;
  }
};

}  // namespace lltm::cuda
