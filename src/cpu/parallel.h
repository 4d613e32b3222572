// How work is spread over the threads of at::parallel_for.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

namespace lltm::cpu {

/// An element costs half a dozen transcendental functions: with AVX-512 1.3 ns of a Zen 4 core in
/// float16, 1.8 in bfloat16, 2.3 in float32. A second thread breaks even at some 1000 elements in
/// all, and gains a tenth at 2000; more threads take longer to set to work.
constexpr int64_t kElementsPerTask = 2048;

inline int64_t rows_per_task(int64_t state_size) {
  return std::max<int64_t>(1, kElementsPerTask / state_size);
}

/// A task should last well beyond the few microseconds that it takes to hand it to another thread.
constexpr int64_t kMultiplicationsPerTask = 400'000;
constexpr int64_t kCopiesPerTask = 50'000;

/// Enough for every thread to have as much as another, where tasks are not all alike.
inline int64_t wanted_tasks() {
  return at::get_num_threads() > 1 ? 4 * at::get_num_threads() : 1;
}

/// `work` is that of all tasks.
template <typename Function>
void for_each_task(int64_t tasks, int64_t work, int64_t work_per_task, const Function& function) {
  const int64_t work_of_one = std::max<int64_t>(1, work / std::max<int64_t>(1, tasks));
  at::parallel_for(0, tasks, std::max<int64_t>(1, work_per_task / work_of_one), function);
}

/// The work of a product with the weights or their gradient, in multiplications. Fewer rows than
/// four take as long as four: the time that it takes to read or write the matrix.
inline int64_t multiplications(int64_t batch, int64_t gates, int64_t columns) {
  return std::max<int64_t>(batch, 4) * gates * columns;
}

}  // namespace lltm::cpu
