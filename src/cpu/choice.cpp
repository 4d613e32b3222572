#include "choice.h"

#include "kernels/kernels.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>

namespace lltm::cpu {
namespace {

/// LLTM_CPU_GEMM, which is read at every call, as LLTM_CUDA_PATH is: some 20 ns.
enum class Forced { kNothing, kOwn, kAten };

Forced forced() {
  const char* value = std::getenv("LLTM_CPU_GEMM");
  if (value == nullptr || *value == '\0') {
    return Forced::kNothing;
  }
  if (std::strcmp(value, "own") == 0) {
    return Forced::kOwn;
  }
  TORCH_CHECK(std::strcmp(value, "aten") == 0,
              "lltm: expected LLTM_CPU_GEMM to be own or aten, or not set, got ",
              value);
  return Forced::kAten;
}

// Where our kernels' products run, and where ATen's: the one place of this choice. Ours read old_h,
// input and weights where they lie, need no concatenation, and hand each tile of gates to the
// pointwise math while it is in the cache. What they were measured at:
//
// AVX-512 with dot products of bfloat16, one thread of an AMD EPYC (Zen 4), 2026-11-21, PyTorch
// 2.11 of PyPI; GFLOP/s of gates = states @ weights.T, ATen's being oneDNN in 16 bits:
//
//                       float32                        bfloat16           float16
//   shape            ours   oneDNN   addmm (MKL)    ours   oneDNN      ours   oneDNN
//   16,32,128          75       49       67           99       53        62       12
//   64,1024,128       115       90       92          199      183        91       22
//   64,512,512        115      100       87          201      168
//   128,1024,1024     110      104       86          199      186
//
// One thread of an Intel Xeon (Sapphire Rapids, shared with others), 2026-11-22, PyTorch 2.15 of
// PyPI; ATen's time / ours, forward and backward, for (16,32,128), (64,1024,128) and (64,512,512).
// Held to less by ATEN_CPU_CAPABILITY, MKL_ENABLE_INSTRUCTIONS and ONEDNN_MAX_CPU_ISA:
//
//                         float64                     float32                   bfloat16, float16
//   AMX        see below                   1.0 0.8, 1.2 1.0, 1.0 0.9     0.2 to 1.7, 1.0 to 2.0
//   AVX-512    1.6 1.4, 1.1 1.1, 1.0 1.4   1.3 0.8, 1.3 1.2, 1.6 1.4     3.4 and more
//   AVX2       1.6 1.3, 1.4 1.1, 1.2 1.1   1.5 1.0, 1.4 1.2, 1.3 0.9     3.6 and more
//
// AVX2 in float64 falls to 0.73 at (128,1024,1024). With AMX oneDNN has matrix units for bfloat16
// that are out of these kernels' reach. SSE2 and NEON have not been measured.
struct OwnProducts {
  InstructionSet instruction_set;
  bool float64, float32, float16, bfloat16;
};

constexpr bool own = true;
constexpr bool aten = false;

// clang-format off
constexpr OwnProducts kTable[] = {
    //                             float64  float32  float16  bfloat16
    {InstructionSet::kAvx512Amx,   own,     own,     own,     aten},
    {InstructionSet::kAvx512Bf16,  own,     own,     own,     own},
    {InstructionSet::kAvx512,      own,     own,     own,     own},
    {InstructionSet::kAvx2,        aten,    own,     own,     own},
    {InstructionSet::kBaseline,    aten,    aten,    aten,    aten},
};
// clang-format on

bool is_own_by_measurement(at::ScalarType dtype) {
  const InstructionSet here = instruction_set();
  for (const OwnProducts& row : kTable) {
    if (row.instruction_set == here) {
      return dtype == at::kDouble  ? row.float64
             : dtype == at::kFloat ? row.float32
             : dtype == at::kHalf  ? row.float16
                                   : row.bfloat16;
    }
  }
  return false;
}

}  // namespace

bool has_own_products(at::ScalarType dtype) {
  const Forced choice = forced();
  return choice == Forced::kNothing ? is_own_by_measurement(dtype) : choice == Forced::kOwn;
}

}  // namespace lltm::cpu
