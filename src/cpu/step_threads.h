// How the steps of a sequence are spread over threads.
//
// The steps of a row wait for one another, those of different rows do not: where there are rows for
// all threads, a thread takes some of them through the whole sequence, and waits for nobody. Where
// there are not, one thread runs the steps, and a kernel's tasks, which are columns of the state,
// are spread only where they are long: the other threads are waited for at every step, and where
// another process has a core, for as long as the system lets it run.
#pragma once

#include "parallel.h"

namespace lltm::cpu {

/// A step that is so short is run by one thread: some 150 us of a Zen 4 core.
constexpr int64_t kShortStepMultiplications = 8'000'000;

/// Of rows that run their steps together: for so many a panel of weights stays in the cache, and
/// what they make in one step does, too.
constexpr int64_t kMaxRowsAtOnce = 256;

struct SequenceWork {
  int64_t batch;
  int64_t steps;
  int64_t multiplications_per_row;  // of a step
  int64_t rows_per_tile;
};

/// run(first_row, last_row, spread) runs the steps of these rows, with spread(tasks,
/// multiplications, kernel) for the tasks of a kernel.
template <typename Run>
void run_rows(const SequenceWork& work, const Run& run) {
  const auto alone = [](int64_t tasks, int64_t /*multiplications*/, const auto& kernel) {
    kernel(0, tasks);
  };
  const auto shared = [](int64_t tasks, int64_t multiplications, const auto& kernel) {
    for_each_task(tasks, multiplications, kShortStepMultiplications, kernel);
  };
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t multiplications = work.batch * work.steps * work.multiplications_per_row;
  const int64_t rows_per_thread = (work.batch + threads - 1) / threads;
  const auto run_alone = [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kMaxRowsAtOnce) {
      run(first, std::min(first + kMaxRowsAtOnce, end), alone);
    }
  };
  if (threads == 1 || multiplications < kShortMultiplications) {
    run_alone(0, work.batch);
  } else if (rows_per_thread >= work.rows_per_tile) {
    at::parallel_for(0, work.batch, std::min(rows_per_thread, kMaxRowsAtOnce), run_alone);
  } else {
    run(int64_t{0}, work.batch, shared);
  }
}

}  // namespace lltm::cpu
