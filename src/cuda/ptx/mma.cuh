// ldmatrix and mma.sync (sm_80 and newer).
#pragma once

#include "device_function.h"

#include <c10/util/Half.h>

#include <cstdint>
#include <type_traits>

namespace lltm::cuda {

// These load 8x8 matrices of 16-bit elements, or 8x4 of 32-bit elements. Lane l provides the
// address of row l % 8 of matrix l / 8.
LLTM_DEVICE void load_matrices_x4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
LLTM_DEVICE void load_matrices_x4_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
LLTM_DEVICE void load_matrices_x2(uint32_t (&r)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];\n"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address));
}

LLTM_DEVICE uint32_t round_to_tf32(float x) {
  uint32_t r;
  asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(r) : "f"(x));
  return r;
}

// d += a * b on the tensor cores, with float32 accumulators. a is 16 x K and b is K x 8. The
// compiler keeps the order of those that are volatile.
#define LLTM_MULTIPLY_ADD(name, is_volatile, kind)                                       \
  LLTM_DEVICE void name(float(&d)[4], const uint32_t(&a)[4], const uint32_t(&b)[2]) {    \
    asm is_volatile("mma.sync.aligned." kind                                             \
                    " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"           \
                    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                     \
                    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
  }
LLTM_MULTIPLY_ADD(multiply_add_bf16, , "m16n8k16.row.col.f32.bf16.bf16.f32")
LLTM_MULTIPLY_ADD(multiply_add_f16, , "m16n8k16.row.col.f32.f16.f16.f32")
LLTM_MULTIPLY_ADD(multiply_add_tf32, , "m16n8k8.row.col.f32.tf32.tf32.f32")
LLTM_MULTIPLY_ADD(multiply_add_bf16_in_order, volatile, "m16n8k16.row.col.f32.bf16.bf16.f32")
LLTM_MULTIPLY_ADD(multiply_add_f16_in_order, volatile, "m16n8k16.row.col.f32.f16.f16.f32")
#undef LLTM_MULTIPLY_ADD

template <typename Element>
LLTM_DEVICE void multiply_add_in_order(float (&d)[4],
                                       const uint32_t (&a)[4],
                                       const uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<Element, c10::Half>) {
    multiply_add_f16_in_order(d, a, b);
  } else {
    multiply_add_bf16_in_order(d, a, b);
  }
}

// d = a * b.
LLTM_DEVICE void multiply_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%10,%10,%10};\n"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
}

}  // namespace lltm::cuda
