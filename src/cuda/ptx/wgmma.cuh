// wgmma and what it requires (sm_90a).
#pragma once

#include "../problem.h"
#include "device_function.h"

#include <cstdint>

namespace lltm::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LLTM_HOPPER 1  // kernels may use the functions below only there
#endif

// The body of a kernel that requires Hopper's instructions where it is compiled for another
// architecture. It is never launched; if it were, the launch would fail instead of doing nothing.
LLTM_DEVICE void trap_wrong_image() {
  asm volatile("trap;\n");
}

// The descriptor of boxes whose rows have 128 bytes, swizzled by 128 bytes, with 1024 bytes per
// eight rows. Boxes are box_bytes apart. This matters only where the rows are K: a box then has 64
// columns.
LLTM_DEVICE uint64_t describe_rows_of_k(uint32_t address, int box_bytes) {
  return (uint64_t{address & 0x3ffff} >> 4) | (static_cast<uint64_t>(box_bytes / 16) << 16) |
         (uint64_t{64} << 32) | (uint64_t{1} << 62);
}

// The descriptor where K is contiguous within a row.
LLTM_DEVICE uint64_t describe_matrix(uint32_t address) {
  return describe_rows_of_k(address, 16);
}

LLTM_DEVICE void fence_products() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
LLTM_DEVICE void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
template <int kPending>
LLTM_DEVICE void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

// d += a * b for 64 rows and `columns` columns of d and 32 bytes of K, by a warpgroup whose threads
// hold columns / 2 sums each. For 16-bit operands, the rows of a are M or, with kRowsOfKA, K; the
// rows of b are N or, with kRowsOfKB, K. The other flags scale d, a and b by 1.
//
// multiply_group_tf32 has a in registers: four per thread, in the layout of mma.sync.m16n8k8, with
// sixteen rows per warp. With kFresh, d = a * b.
// clang-format off
#define LLTM_NAMES_12 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11"
#define LLTM_NAMES_16 LLTM_NAMES_12 ", %12, %13, %14, %15"
#define LLTM_NAMES_24 LLTM_NAMES_12 ", %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23"
#define LLTM_NAMES_32 LLTM_NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define LLTM_NAMES_36 LLTM_NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35"
#define LLTM_NAMES_48 LLTM_NAMES_36 ", %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define LLTM_NAMES_60 LLTM_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59"
#define LLTM_NAMES_64 LLTM_NAMES_60 ", %60, %61, %62, %63"
#define LLTM_NAMES_72 LLTM_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define LLTM_NAMES_96 LLTM_NAMES_72 ", "                                                           \
    "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, "                                 \
    "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define LLTM_NAMES_128 LLTM_NAMES_96 ", "                                                          \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, "                               \
    "%107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, "                           \
    "%118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define LLTM_FOUR_SUMS(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define LLTM_SUMS_12 LLTM_FOUR_SUMS(0), LLTM_FOUR_SUMS(4), LLTM_FOUR_SUMS(8)
#define LLTM_SUMS_16 LLTM_SUMS_12, LLTM_FOUR_SUMS(12)
#define LLTM_SUMS_24 LLTM_SUMS_12, LLTM_FOUR_SUMS(12), LLTM_FOUR_SUMS(16), LLTM_FOUR_SUMS(20)
#define LLTM_SUMS_32 LLTM_SUMS_24, LLTM_FOUR_SUMS(24), LLTM_FOUR_SUMS(28)
#define LLTM_SUMS_36 LLTM_SUMS_24, LLTM_FOUR_SUMS(24), LLTM_FOUR_SUMS(28), LLTM_FOUR_SUMS(32)
#define LLTM_SUMS_48 LLTM_SUMS_36, LLTM_FOUR_SUMS(36), LLTM_FOUR_SUMS(40), LLTM_FOUR_SUMS(44)
#define LLTM_SUMS_60 LLTM_SUMS_48, LLTM_FOUR_SUMS(48), LLTM_FOUR_SUMS(52), LLTM_FOUR_SUMS(56)
#define LLTM_SUMS_64 LLTM_SUMS_60, LLTM_FOUR_SUMS(60)
#define LLTM_SUMS_72 LLTM_SUMS_64, LLTM_FOUR_SUMS(64), LLTM_FOUR_SUMS(68)
#define LLTM_SUMS_96 LLTM_SUMS_72, LLTM_FOUR_SUMS(72),                                             \
    LLTM_FOUR_SUMS(76), LLTM_FOUR_SUMS(80), LLTM_FOUR_SUMS(84), LLTM_FOUR_SUMS(88),                \
    LLTM_FOUR_SUMS(92)
#define LLTM_SUMS_128 LLTM_SUMS_96, LLTM_FOUR_SUMS(96), LLTM_FOUR_SUMS(100), LLTM_FOUR_SUMS(104),  \
    LLTM_FOUR_SUMS(108), LLTM_FOUR_SUMS(112), LLTM_FOUR_SUMS(116), LLTM_FOUR_SUMS(120),            \
    LLTM_FOUR_SUMS(124)
#define LLTM_MULTIPLY_HALVES(columns, types, sums, x1, x2, x3)                                     \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." types                       \
               " {" LLTM_NAMES_##sums "}, %" #sums ", %" #x1 ", 1, 1, 1, %" #x2 ", %" #x3 ";\n"    \
               : LLTM_SUMS_##sums                                                                  \
               : "l"(a), "l"(b), "n"(kRowsOfKA ? 1 : 0), "n"(kRowsOfKB ? 1 : 0))
// The operands behind the sums have the numbers sums, x1, x2, ....
#define LLTM_MULTIPLY_GROUP(columns, sums, x1, x2, x3, x4, x5)                                     \
  template <Arithmetic kArithmetic, bool kRowsOfKA = false, bool kRowsOfKB = false>                \
  LLTM_DEVICE void multiply_group(float (&d)[sums], uint64_t a, uint64_t b) {       \
    if constexpr (kArithmetic == Arithmetic::kFloat16) {                                           \
      LLTM_MULTIPLY_HALVES(columns, "f16.f16", sums, x1, x2, x3);                                  \
    } else if constexpr (kArithmetic == Arithmetic::kBFloat16) {                                   \
      LLTM_MULTIPLY_HALVES(columns, "bf16.bf16", sums, x1, x2, x3);                                \
    } else {                                                                                       \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k8.f32.tf32.tf32"                 \
                   " {" LLTM_NAMES_##sums "}, %" #sums ", %" #x1 ", 1, 1, 1;\n"                    \
                   : LLTM_SUMS_##sums                                                              \
                   : "l"(a), "l"(b));                                                              \
    }                                                                                              \
  }                                                                                                \
  template <bool kFresh>                                                                           \
  LLTM_DEVICE void multiply_group_tf32(                                             \
      float (&d)[sums], const uint32_t (&a)[4], uint64_t b) {                                      \
    asm volatile(                                                                                  \
        "{\n"                                                                                      \
        ".reg .pred keep;\n"                                                                       \
        "setp.ne.b32 keep, %" #x5 ", 0;\n"                                                         \
        "wgmma.mma_async.sync.aligned.m64n" #columns "k8.f32.tf32.tf32 {" LLTM_NAMES_##sums "}, "  \
        "{%" #sums ", %" #x1 ", %" #x2 ", %" #x3 "}, %" #x4 ", keep, 1, 1;\n"                      \
        "}\n"                                                                                      \
        : LLTM_SUMS_##sums                                                                         \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kFresh ? 0 : 1));                \
  }
LLTM_MULTIPLY_GROUP(24, 12, 13, 14, 15, 16, 17)
LLTM_MULTIPLY_GROUP(32, 16, 17, 18, 19, 20, 21)
LLTM_MULTIPLY_GROUP(64, 32, 33, 34, 35, 36, 37)
LLTM_MULTIPLY_GROUP(72, 36, 37, 38, 39, 40, 41)
LLTM_MULTIPLY_GROUP(96, 48, 49, 50, 51, 52, 53)
LLTM_MULTIPLY_GROUP(120, 60, 61, 62, 63, 64, 65)
LLTM_MULTIPLY_GROUP(128, 64, 65, 66, 67, 68, 69)
LLTM_MULTIPLY_GROUP(192, 96, 97, 98, 99, 100, 101)
LLTM_MULTIPLY_GROUP(256, 128, 129, 130, 131, 132, 133)
// clang-format on
#undef LLTM_MULTIPLY_GROUP
#undef LLTM_MULTIPLY_HALVES

template <int kCount>
LLTM_DEVICE void clear(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    d[i] = 0;
  }
}

// Keeps all uses of the sums behind the preceding wait for products. The loop runs over indices
// because a loop over the array itself is not unrolled if the array is long.
template <int kCount>
LLTM_DEVICE void keep_behind(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile("" : "+f"(d[i])::"memory");
  }
}

// Keeps the registers of a reserved until here: the compiler considers a wgmma done once it is
// issued.
LLTM_DEVICE void keep_until_here(const uint32_t (&a)[4][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    asm volatile("" ::"r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]) : "memory");
  }
}

// These move registers between the warpgroups of a block. All threads of a warpgroup call them.
template <int kRegisters>
LLTM_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
LLTM_DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

}  // namespace lltm::cuda
