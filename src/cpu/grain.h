// How much of the batch one task of at::parallel_for takes.
#pragma once

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

}  // namespace lltm::cpu
