// wgmma and what it requires (sm_90a).
#pragma once

#include <cstdint>

namespace lltm::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LLTM_HOPPER 1  // kernels may use the functions below only there
#endif

// The body of a kernel that requires Hopper's instructions where it is compiled for another
// architecture. It is never launched; if it were, the launch would fail instead of doing nothing.
__device__ __forceinline__ void trap_wrong_image() {
  asm volatile("trap;\n");
}

// The descriptor of boxes whose rows have 128 bytes, swizzled by 128 bytes, with 1024 bytes per
// eight rows. Boxes are box_bytes apart. This matters only where the rows are K: a box then has 64
// columns.
__device__ __forceinline__ uint64_t describe_rows_of_k(uint32_t address, int box_bytes) {
  return (uint64_t{address & 0x3ffff} >> 4) | (static_cast<uint64_t>(box_bytes / 16) << 16) |
         (uint64_t{64} << 32) | (uint64_t{1} << 62);
}

// The descriptor where K is contiguous within a row.
__device__ __forceinline__ uint64_t describe_matrix(uint32_t address) {
  return describe_rows_of_k(address, 16);
}

__device__ __forceinline__ void fence_products() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

// d += a * b for 64 rows and `columns` columns of d and 32 bytes of K, by a warpgroup whose threads
// hold columns / 2 sums each. For 16-bit operands, the rows of a are M or, with kRowsOfKA, K; the
// rows of b are N or, with kRowsOfKB, K. The other flags scale d, a and b by 1.
// clang-format off
#define LLTM_NAMES_12 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11"
#define LLTM_NAMES_24 LLTM_NAMES_12 ", %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23"
#define LLTM_NAMES_32 LLTM_NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define LLTM_NAMES_36 LLTM_NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35"
#define LLTM_NAMES_48 LLTM_NAMES_36 ", %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define LLTM_NAMES_60 LLTM_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59"
#define LLTM_NAMES_64 LLTM_NAMES_60 ", %60, %61, %62, %63"
#define LLTM_SUMS_12                                                                               \
    "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),                        \
    "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define LLTM_SUMS_24 LLTM_SUMS_12,                                                                 \
    "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),                  \
    "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define LLTM_SUMS_32 LLTM_SUMS_24,                                                                 \
    "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),                                            \
    "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define LLTM_SUMS_36 LLTM_SUMS_24,                                                                 \
    "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),                  \
    "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define LLTM_SUMS_48 LLTM_SUMS_36,                                                                 \
    "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),                  \
    "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define LLTM_SUMS_60 LLTM_SUMS_48,                                                                 \
    "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]),                  \
    "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define LLTM_SUMS_64 LLTM_SUMS_60,                                                                 \
    "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define LLTM_NAMES_96 LLTM_NAMES_64 ", "                                                           \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define LLTM_SUMS_96 LLTM_SUMS_64,                                                                 \
    "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]),                  \
    "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]),                  \
    "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]),                  \
    "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),                  \
    "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]),                  \
    "+f"(d[94]), "+f"(d[95])
#define LLTM_NAMES_128 LLTM_NAMES_96 ", "                                                          \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, "                               \
    "%107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, "                           \
    "%118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define LLTM_SUMS_128 LLTM_SUMS_96,                                                                \
    "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]),                              \
    "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]),                          \
    "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]),                          \
    "+f"(d[111]), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]),                          \
    "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]),                          \
    "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]),                          \
    "+f"(d[126]), "+f"(d[127])
#define LLTM_MULTIPLY_GROUP(name, types, columns, sums, b_operand, a_flag, b_flag)                 \
  template <bool kRowsOfKA = false, bool kRowsOfKB = false>                                        \
  __device__ __forceinline__ void name(float (&d)[sums], uint64_t a, uint64_t b) {                 \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." types                     \
                 " {" LLTM_NAMES_##sums "}, %" #sums ", %" #b_operand                              \
                 ", 1, 1, 1, %" #a_flag ", %" #b_flag ";\n"                                        \
                 : LLTM_SUMS_##sums                                                                \
                 : "l"(a), "l"(b), "n"(kRowsOfKA ? 1 : 0), "n"(kRowsOfKB ? 1 : 0));                \
  }
#define LLTM_MULTIPLY_GROUPS(columns, sums, b_operand, a_flag, b_flag)                             \
  LLTM_MULTIPLY_GROUP(multiply_group_bf16, "bf16.bf16", columns, sums, b_operand, a_flag, b_flag)  \
  LLTM_MULTIPLY_GROUP(multiply_group_f16, "f16.f16", columns, sums, b_operand, a_flag, b_flag)     \
  __device__ __forceinline__ void multiply_group_tf32(float (&d)[sums], uint64_t a, uint64_t b) {  \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k8.f32.tf32.tf32"                   \
                 " {" LLTM_NAMES_##sums "}, %" #sums ", %" #b_operand ", 1, 1, 1;\n"               \
                 : LLTM_SUMS_##sums                                                                \
                 : "l"(a), "l"(b));                                                                \
  }
LLTM_MULTIPLY_GROUPS(24, 12, 13, 14, 15)
LLTM_MULTIPLY_GROUPS(64, 32, 33, 34, 35)
LLTM_MULTIPLY_GROUPS(72, 36, 37, 38, 39)
LLTM_MULTIPLY_GROUPS(96, 48, 49, 50, 51)
LLTM_MULTIPLY_GROUPS(120, 60, 61, 62, 63)
LLTM_MULTIPLY_GROUPS(128, 64, 65, 66, 67)
LLTM_MULTIPLY_GROUPS(192, 96, 97, 98, 99)
LLTM_MULTIPLY_GROUPS(256, 128, 129, 130, 131)
// clang-format on
#undef LLTM_MULTIPLY_GROUPS
#undef LLTM_MULTIPLY_GROUP

// The same with a in registers: four per thread, in the layout of mma.sync.m16n8k8, with sixteen
// rows per warp. With kFresh, d = a * b.
// clang-format off
#define LLTM_MULTIPLY_REGISTERS(rows, sums, a0, a1, a2, a3, b_operand, keep_operand)               \
  template <bool kFresh>                                                                           \
  __device__ __forceinline__ void multiply_group_tf32(                                             \
      float (&d)[sums], const uint32_t (&a)[4], uint64_t b) {                                      \
    asm volatile(                                                                                  \
        "{\n"                                                                                      \
        ".reg .pred keep;\n"                                                                       \
        "setp.ne.b32 keep, %" #keep_operand ", 0;\n"                                               \
        "wgmma.mma_async.sync.aligned.m64n" #rows "k8.f32.tf32.tf32 {" LLTM_NAMES_##sums "}, "     \
        "{%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_operand ", keep, 1, 1;\n"                 \
        "}\n"                                                                                      \
        : LLTM_SUMS_##sums                                                                         \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kFresh ? 0 : 1));                \
  }
LLTM_MULTIPLY_REGISTERS(24, 12, 12, 13, 14, 15, 16, 17)
LLTM_MULTIPLY_REGISTERS(64, 32, 32, 33, 34, 35, 36, 37)
LLTM_MULTIPLY_REGISTERS(96, 48, 48, 49, 50, 51, 52, 53)
LLTM_MULTIPLY_REGISTERS(128, 64, 64, 65, 66, 67, 68, 69)
LLTM_MULTIPLY_REGISTERS(256, 128, 128, 129, 130, 131, 132, 133)
// clang-format on
#undef LLTM_MULTIPLY_REGISTERS

template <int kCount>
__device__ __forceinline__ void clear(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    d[i] = 0;
  }
}

// Keeps all uses of the sums behind the preceding wait for products. The loop runs over indices
// because a loop over the array itself is not unrolled if the array is long.
template <int kCount>
__device__ __forceinline__ void keep_behind(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile("" : "+f"(d[i])::"memory");
  }
}

// Keeps the registers of a reserved until here: the compiler considers a wgmma done once it is
// issued.
__device__ __forceinline__ void keep_until_here(const uint32_t (&a)[4][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    asm volatile("" ::"r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]) : "memory");
  }
}

// These move registers between the warpgroups of a block. All threads of a warpgroup call them.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

}  // namespace lltm::cuda
