// How fast a core multiplies and adds in float32: the limit of every product on the CPU. Compiled
// for the instruction set of the machine.
#include <torch/library.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace {

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif
typedef float Vector __attribute__((vector_size(kBytes)));

// Enough to hide the latency of an instruction, and few enough to stay in registers.
constexpr int kVectors = 12;

// Without what the compiler knows of `factor`, from which it could compute some sums.
__attribute__((noipa)) float multiply_and_add(int64_t times, float factor) {
  Vector sums[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    sums[v] = Vector{} + factor * static_cast<float>(v);  // of different values, or one would do
  }
  for (int64_t i = 0; i < times; ++i) {
#pragma GCC unroll 12
    for (int v = 0; v < kVectors; ++v) {
      sums[v] = sums[v] * factor + factor;
    }
  }
  Vector total{};
  for (const Vector& sum : sums) {
    total += sum;
  }
  return total[0];
}

/// Multiply-adds per microsecond of the calling thread: the best of several short runs.
double multiply_add_rate() {
  constexpr int64_t kTimes = 200'000;
  constexpr double kMultiplyAdds = double(kTimes) * kVectors * (kBytes / sizeof(float));
  double best = 0;
  for (int run = 0; run < 50; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    volatile float result = multiply_and_add(kTimes, 0.5f);
    (void)result;
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    best = std::max(best, kMultiplyAdds / time.count());
  }
  return best;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lltm_peers, m) {
  m.def("multiply_add_rate() -> float", multiply_add_rate);
}
