// The CPU kernels for AVX2 with FMA.
#include "kernels.h"

#if defined(__x86_64__)

#include <cmath>
#include <cstring>
#include <immintrin.h>

#pragma GCC target("avx2,fma,f16c")
#define LLTM_SIMD_BYTES 32
#include "table.h"

const lltm::cpu::Kernels& lltm::cpu::avx2_kernels() {
  static constexpr Kernels kernels = make_kernels(Kernels{});
  return kernels;
}

#endif
