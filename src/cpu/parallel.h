// How work is divided among the threads of at::parallel_for.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

namespace lltm::cpu {

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Short work runs on one thread. What counts as short follows from two measurements:
//  - On an idle machine, handing work to another thread takes 5 to 10 us. At (16,32,128) in
//    float32, 45 us on one thread of a Zen 4 core, a second thread saved a tenth; from 75 us on it
//    saves a third or more.
//  - If another process occupies the core, the call waits until the system preempts that process:
//    12 ms instead of 45 us at (16,32,128), 8 ms instead of 150 us at (1,512,512) on a Xeon
//    (benchmark/RESULTS.md, "under load"). Short work loses as much as long work, gains less, and
//    is called more often.
// A second thread is therefore used from about 75 us on a Zen 4 core with AVX-512, in the units
// below. Beyond that, tasks may be smaller: once one helper is needed, more cost little.

/// Each takes half a dozen transcendental functions: 1.3 ns in float16, 1.8 in bfloat16, 2.3 in
/// float32.
constexpr int64_t kShortElements = 32'768;
constexpr int64_t kShortMultiplications = 4'000'000;
/// Lower, because packing precedes a product, which then finds its threads awake.
constexpr int64_t kShortCopies = 200'000;

constexpr int64_t kTasksOfShortWork = 8;

/// Enough tasks to balance the threads when tasks differ in length.
inline int64_t wanted_tasks() {
  return at::get_num_threads() > 1 ? 4 * at::get_num_threads() : 1;
}

/// Calls function(begin, end) for the tasks [0, tasks). `work` is the work of all tasks together;
/// if it is less than `short_work`, in the same units, a single thread runs them.
template <typename Function>
void for_each_task(int64_t tasks, int64_t work, int64_t short_work, const Function& function) {
  const int64_t work_of_one = std::max<int64_t>(1, work / std::max<int64_t>(1, tasks));
  const int64_t tasks_at_once = short_work / kTasksOfShortWork / work_of_one;
  at::parallel_for(
      0, tasks, work < short_work ? tasks : std::max<int64_t>(1, tasks_at_once), function);
}

/// The rows of a batch, for pointwise math.
template <typename Function>
void for_each_row(int64_t batch, int64_t state_size, const Function& function) {
  for_each_task(batch, batch * state_size, kShortElements, function);
}

/// The work of a product with the weights or their gradient, in multiplications. Fewer than four
/// rows take as long as four: the time to read or write the matrix.
inline int64_t multiplications(int64_t batch, int64_t gates, int64_t columns) {
  return std::max<int64_t>(batch, 4) * gates * columns;
}

}  // namespace lltm::cpu
