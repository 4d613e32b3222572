// The products in bfloat16 for AVX-512 with AMX: products with packed panels use tile registers,
// the cell's use dot products of bfloat16.
#include "kernels.h"

#if defined(__x86_64__)

#include <cmath>
#include <cstring>
#include <immintrin.h>

#pragma GCC target("avx512bf16,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#define LLTM_SIMD_BYTES 64
#define LLTM_BFLOAT16_DOT
#define LLTM_AMX
#include "table.h"

const lltm::cpu::KernelsFor<c10::BFloat16>& lltm::cpu::amx_bfloat16_kernels() {
  static constexpr auto kernels = make_kernels(KernelsFor<c10::BFloat16>{});
  return kernels;
}

#endif
