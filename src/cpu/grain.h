// How much of the batch one task of at::parallel_for takes.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lltm::cpu {

/// An element costs half a dozen transcendental functions, some 10 ns; a task should last well
/// beyond the few microseconds that it takes to hand it to another thread.
constexpr int64_t kElementsPerTask = 2048;

inline int64_t rows_per_task(int64_t state_size) {
  return std::max<int64_t>(1, kElementsPerTask / state_size);
}

}  // namespace lltm::cpu
