// How work is spread over the threads of at::parallel_for.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

namespace lltm::cpu {

// What is short on one thread takes one. Two things say what is short:
//  - Alone on the machine, handing work to another thread takes 5 to 10 us. At (16,32,128) in
//    float32, 45 us on one thread of a Zen 4 core, a second saved a tenth; from 75 us on it saves a
//    third or more.
//  - Where another process has the core, the call waits until the system takes that process off it:
//    12 ms in place of 45 us at (16,32,128), 8 ms in place of 150 us at (1,512,512) on a Xeon
//    (benchmark/RESULTS.md, "under load"). What is short has as much to lose as what is long, less
//    to gain, and is called more often.
// So a second thread begins at some 75 us of a Zen 4 core with AVX-512, in the units below. From
// there on tasks may be smaller: who waits for two threads may as well wait for more.

/// Half a dozen transcendental functions each: 1.3 ns in float16, 1.8 in bfloat16, 2.3 in float32.
constexpr int64_t kShortElements = 32'768;
constexpr int64_t kShortMultiplications = 4'000'000;
/// Packing goes before a product, whose threads are awake after it.
constexpr int64_t kShortCopies = 200'000;

constexpr int64_t kTasksOfShortWork = 8;

/// Enough for every thread to have as much as another, where tasks are not all alike.
inline int64_t wanted_tasks() {
  return at::get_num_threads() > 1 ? 4 * at::get_num_threads() : 1;
}

/// function(begin, end) for the tasks [0, tasks). `work` is that of all, in the units of
/// `short_work`, which one thread does.
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

/// The work of a product with the weights or their gradient, in multiplications. Fewer rows than
/// four take as long as four: the time that it takes to read or write the matrix.
inline int64_t multiplications(int64_t batch, int64_t gates, int64_t columns) {
  return std::max<int64_t>(batch, 4) * gates * columns;
}

}  // namespace lltm::cpu
