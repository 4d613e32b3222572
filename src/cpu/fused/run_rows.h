// How the steps of a sequence are divided among threads.
//
// The steps of a row depend on each other, but different rows are independent. If there are enough
// rows for all threads, each thread takes some rows through the whole sequence without waiting for
// the others. Otherwise a team of threads runs the steps together: a kernel's tasks, which are
// columns of the state, are divided among them.
#pragma once

#include "../parallel.h"
#include "step_team.h"

#include <algorithm>
#include <cstdint>

namespace lltm::cpu {

/// A thread takes part in a kernel of a step if its share is at least this long: 0.8 us on a Zen 5
/// core. To give the share away then costs about a quarter of that.
constexpr int64_t kMultiplicationsPerShare = 100'000;

/// The most rows that run their steps together. With this many, a panel of weights stays in the
/// cache, and so do the results of a step.
constexpr int64_t kMaxRowsAtOnce = 256;

/// The largest total workspace of the rows that run at once on all threads, out of the 64 MiB that
/// a call may take. A tile of rows per thread is always allowed.
constexpr int64_t kMaxRowsBytes = 12 << 20;

inline int64_t threads_of_sequence() {
  return at::in_parallel_region() ? 1 : at::get_num_threads();
}

/// The most rows that a thread may run at once if each takes this much workspace.
inline int64_t rows_that_fit(int64_t bytes_per_row, int64_t rows_per_tile) {
  const int64_t tiles = kMaxRowsBytes / (threads_of_sequence() * rows_per_tile * bytes_per_row);
  return std::clamp(tiles * rows_per_tile, rows_per_tile, kMaxRowsAtOnce);
}

struct SequenceWork {
  int64_t batch;
  int64_t steps;
  int64_t multiplications_per_row;   // of a step and its input
  int64_t multiplications_per_step;  // of the step alone, with all rows
  int64_t rows_per_tile;
  int64_t rows_at_once;  // by a thread that runs all their steps alone
};

/// Calls run(first_row, last_row, rows_at_once, run_tasks), which runs the steps of these rows in a
/// workspace of at most rows_at_once or last_row - first_row rows, and uses
/// run_tasks(tasks, multiplications, kernel) to run the tasks of a kernel.
template <typename Run>
void run_rows(const SequenceWork& work, const Run& run) {
  const auto alone = [](int64_t tasks, int64_t /*multiplications*/, const auto& kernel) {
    kernel(0, tasks);
  };
  const int64_t threads = threads_of_sequence();
  const int64_t multiplications = work.batch * work.steps * work.multiplications_per_row;
  const int64_t rows_per_thread = ceil_div(work.batch, threads);
  const int64_t threads_per_step =
      std::min(threads, work.multiplications_per_step / kMultiplicationsPerShare);
  const auto run_alone = [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += work.rows_at_once) {
      run(first, std::min(first + work.rows_at_once, end), work.rows_at_once, alone);
    }
  };
  const auto run_together = [&](const auto& run_tasks) {
    run(int64_t{0}, work.batch, kMaxRowsAtOnce, run_tasks);
  };
  if (threads == 1 || multiplications < kShortMultiplications) {
    run_alone(0, work.batch);
  } else if (rows_per_thread >= work.rows_per_tile) {
    at::parallel_for(0, work.batch, std::min(rows_per_thread, work.rows_at_once), run_alone);
  } else if (threads_per_step > 1) {
    StepTeam team(threads_per_step);
    const auto lead = [&] {
      run_together([&](int64_t tasks, int64_t multiplications, const auto& kernel) {
        team.share(tasks, multiplications / kMultiplicationsPerShare, kernel);
      });
    };
    at::parallel_for(0, threads_per_step, 1, [&](int64_t first, int64_t /*last*/) {
      first == 0 ? team.lead(lead) : team.help(first);
    });
  } else {
    run_together([](int64_t tasks, int64_t multiplications, const auto& kernel) {
      for_each_task(tasks, multiplications, kShortMultiplications, kernel);
    });
  }
}

}  // namespace lltm::cpu
