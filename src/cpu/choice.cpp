#include "choice.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>

namespace lltm::cpu {
namespace {

enum class Choice { kByMeasurement, kOwn, kAten };

Choice read_choice() {
  const char* value = std::getenv("LLTM_CPU_GEMM");
  if (value == nullptr || *value == '\0') {
    return Choice::kByMeasurement;
  }
  if (std::strcmp(value, "own") == 0) {
    return Choice::kOwn;
  }
  TORCH_CHECK(std::strcmp(value, "aten") == 0,
              "lltm: expected LLTM_CPU_GEMM to be own or aten, or not set, got ",
              value);
  return Choice::kAten;
}

bool has_own_products_in_16_bits() {
#if defined(__x86_64__)
  return !__builtin_cpu_supports("amx-bf16");
#else
  return false;
#endif
}

}  // namespace

// The products' one place of choice. Measured on an AMD EPYC (Zen 4, PyTorch 2.11 of PyPI), one
// thread, GFLOP/s of gates = states @ weights.T:
//
//   shape            ours   oneDNN   addmm (MKL)
//   16,32,128         75      49       67
//   64,1024,128      115      90       92
//   64,512,512       115     100       87
//   128,1024,1024    110     104       86
//
// Ours reads old_h, input and weights where they lie, needs no concatenation, and hands each tile
// of gates to the pointwise math while it is in the cache. In 16 bits, where ATen goes to oneDNN:
//
//   shape            bfloat16: ours   oneDNN   float16: ours   oneDNN
//   16,32,128                    99       53              62       12
//   64,1024,128                 199      183              91       22
//   64,512,512                  201      168
//   128,1024,1024               199      186
//
// Held to AVX-512 without dot products of bfloat16, or to AVX2 (ONEDNN_MAX_CPU_ISA,
// ATEN_CPU_CAPABILITY), oneDNN falls behind further. It has the matrix units of AMX, which are out
// of these kernels' reach, and BLAS libraries of Arm's: there ours have not been measured.
bool has_own_products(at::ScalarType dtype) {
  static const Choice choice = read_choice();
  if (choice != Choice::kByMeasurement) {
    return choice == Choice::kOwn;
  }
  static const bool own_in_16_bits = has_own_products_in_16_bits();
  return dtype == at::kFloat || dtype == at::kDouble || own_in_16_bits;
}

}  // namespace lltm::cpu
