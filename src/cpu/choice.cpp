#include "choice.h"

#include "kernels/kernels.h"

#include <c10/util/Exception.h>
#include <c10/util/env.h>

#include <string>

namespace lltm::cpu {
namespace {

/// The value of LLTM_CPU_GEMM. Like LLTM_CUDA_PATH, it is read at every call, under the lock with
/// which PyTorch changes the environment.
enum class Forced { kNothing, kOwn, kAten };

Forced forced() {
  const std::string value = c10::utils::get_env("LLTM_CPU_GEMM").value_or("auto");
  if (value.empty() || value == "auto") {
    return Forced::kNothing;
  }
  if (value == "own") {
    return Forced::kOwn;
  }
  TORCH_CHECK(value == "aten",
              "lltm: expected the environment variable LLTM_CPU_GEMM to be auto, own or aten, got ",
              value);
  return Forced::kAten;
}

// Chooses between this library's matrix products and ATen's; nothing else makes this choice. Our
// kernels read old_h, input and weights in place, need no concatenation, and pass each tile of
// gates to the pointwise math while it is in the cache. Measurements:
//
// AVX-512 with dot products of bfloat16, one thread of an AMD EPYC (Zen 4), 2026-11-21, PyTorch
// 2.11 from PyPI; GFLOP/s of gates = states @ weights.T, where ATen uses oneDNN for 16 bits:
//
//                       float32                        bfloat16           float16
//   shape            ours   oneDNN   addmm (MKL)    ours   oneDNN      ours   oneDNN
//   16,32,128          75       49       67           99       53        62       12
//   64,1024,128       115       90       92          199      183        91       22
//   64,512,512        115      100       87          201      168
//   128,1024,1024     110      104       86          199      186
//
// One thread of an Intel Xeon (Sapphire Rapids, shared with other work), 2026-11-22, PyTorch 2.15
// from PyPI: ATen's time / ours, forward and backward, minimum over alternating calls. AVX2 means
// ATEN_CPU_CAPABILITY=avx2, MKL_ENABLE_INSTRUCTIONS=AVX2 and ONEDNN_MAX_CPU_ISA=AVX2:
//
//                        with AMX                                 AVX2
//   shape            float64      float32      float16        float64      float32
//   16,32,128       1.14 0.91    1.29 0.76    1.92 2.34      1.00 0.90    1.31 0.85
//   64,1024,128     1.01 1.10    1.38 1.07    1.29 1.05      0.94 0.88    1.12 0.77
//   64,512,512      0.97 1.04    1.16 1.06    1.28 1.10      0.97 0.82    1.03 0.81
//   128,1024,1024   0.71 0.80    0.77 1.37    0.97 0.96      0.85 0.67    0.98 0.79
//
// For bfloat16 with AMX, oneDNN uses matrix units, which the cell's kernels do not, but it reorders
// the weights in every call and takes 50 us for anything. ATen's time / ours, on one thread of a
// Xeon with AMX, 2026-11-26, PyTorch 2.15:
//
//   rows           1           4           8          16          32          64
//   32,32     10.68 2.44   9.07 9.06   7.35 8.98   5.82 6.73   5.37 5.82   3.38 3.65
//   128,128    4.89 7.47   4.09 3.53   2.47 3.18   1.59 2.57   1.01 1.78   0.71 1.44
//   512,512    1.49 2.83   1.83 1.32   1.20 1.02   0.52 0.73   0.36 0.58   0.26 0.40
//   1024,1024  1.14 2.23   1.72 1.59   0.78 0.82   0.38 0.92   0.25 0.87   0.23 0.56
//
// Without AMX, ATen took at least 3.4 times as long as ours in 16 bits, also with
// AVX2. On AMD, MKL runs its AVX2 code; our AVX-512 against that code in float64, on the same Xeon:
//
//   16,32,128 1.00 1.06; 64,1024,128 1.46 1.35; 64,512,512 1.30 1.38; 128,1024,1024 1.24 1.12
//
// A sequence's kernels do use the matrix units in bfloat16: at (64,32,512,512) the faster of
// nn.LSTM and nn.GRU took 1.46 times as long as ours, and 2.60 with gradients. With dot products
// the ratios are 0.52 and 0.75. Without our kernels, a 16-bit sequence multiplies in float32, so
// the choice for float32 applies to it.
//
// SSE2, NEON, and float64 on Intel CPUs without AMX have not been measured.
enum class Own { kNever, kForward, kSmall, kAlways };

struct OwnProducts {
  InstructionSet instruction_set;
  Own float64, float32, float16, bfloat16;
};

using enum Own;

// clang-format off
constexpr OwnProducts kTable[] = {
    //                             float64   float32    float16   bfloat16
    {InstructionSet::kAvx512Amx,   kNever,   kAlways,   kAlways,  kSmall},
    {InstructionSet::kAvx512Bf16,  kAlways,  kAlways,   kAlways,  kAlways},
    {InstructionSet::kAvx512,      kNever,   kAlways,   kAlways,  kAlways},
    {InstructionSet::kAvx2,        kNever,   kForward,  kAlways,  kAlways},
    {InstructionSet::kBaseline,    kNever,   kNever,    kNever,   kNever},
};
// clang-format on

Own own_by_measurement(at::ScalarType dtype) {
  const InstructionSet here = instruction_set();
  for (const OwnProducts& row : kTable) {
    if (row.instruction_set == here) {
      return dtype == at::kDouble  ? row.float64
             : dtype == at::kFloat ? row.float32
             : dtype == at::kHalf  ? row.float16
                                   : row.bfloat16;
    }
  }
  return kNever;
}

}  // namespace

bool has_own_products(at::ScalarType dtype, Pass pass, const CellSizes<int64_t>& sizes) {
  const Forced choice = forced();
  if (choice != Forced::kNothing) {
    return choice == Forced::kOwn;
  }
  switch (own_by_measurement(dtype)) {
    case kNever:
      return false;
    case kForward:
      return pass == Pass::kForward;
    case kSmall: {
      // Up to seven rows, or as many more as are multiplied while ATen prepares its product.
      const int64_t weights = 3 * sizes.state_size * (sizes.state_size + sizes.input_features);
      return (sizes.batch - 7) * weights < 3'000'000;
    }
    case kAlways:
      break;
  }
  return true;
}

bool has_own_sequence_products(at::ScalarType dtype) {
  const Forced choice = forced();
  const Own own = own_by_measurement(dtype == at::kDouble ? at::kDouble : at::kFloat);
  return choice == Forced::kNothing ? own == kForward || own == kAlways : choice == Forced::kOwn;
}

bool are_own_products_forced() {
  return forced() == Forced::kOwn;
}

}  // namespace lltm::cpu
