// The CPU kernels for every machine of the architecture: SSE2 or NEON.
#include "kernels.h"

#include <cmath>
#include <cstring>

#define LLTM_SIMD_BYTES 16
#include "table.h"

const lltm::cpu::Kernels& lltm::cpu::baseline_kernels() {
  static constexpr Kernels kernels = make_kernels(Kernels{});
  return kernels;
}
