// The products in bfloat16 for AVX-512 with dot products of bfloat16: twice the terms per lane.
#include "kernels.h"

#if defined(__x86_64__)

#include <cmath>
#include <cstring>
#include <immintrin.h>

#pragma GCC target("avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#define LLTM_SIMD_BYTES 64
#define LLTM_BFLOAT16_DOT
#include "table.h"

const lltm::cpu::KernelsFor<c10::BFloat16>& lltm::cpu::avx512_bfloat16_kernels() {
  static constexpr auto kernels = make_kernels(KernelsFor<c10::BFloat16>{});
  return kernels;
}

#endif
