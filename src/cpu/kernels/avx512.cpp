// The CPU kernels for AVX-512.
#include "kernels.h"

#if defined(__x86_64__)

#include <cmath>
#include <cstring>
#include <immintrin.h>

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#define LLTM_SIMD_BYTES 64
#include "table.h"

const lltm::cpu::Kernels& lltm::cpu::avx512_kernels() {
  static constexpr Kernels kernels = make_kernels(Kernels{});
  return kernels;
}

#endif
