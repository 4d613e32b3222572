#include "kernels.h"

#include <ATen/Version.h>
#include <ATen/cpu/Utils.h>
#include <c10/util/env.h>

#include <algorithm>
#include <cctype>
#include <string>

namespace lltm::cpu {
namespace {

#if defined(__x86_64__)
/// Whether the machine has tile registers for bfloat16 and the system lets the process use them.
/// False if ONEDNN_MAX_CPU_ISA limits oneDNN to less.
bool has_tile_registers() {
  std::string isa = c10::utils::get_env("ONEDNN_MAX_CPU_ISA").value_or("");
  std::transform(isa.begin(), isa.end(), isa.begin(), [](unsigned char letter) {
    return static_cast<char>(std::toupper(letter));
  });
  const bool allowed =
      isa.empty() || isa == "ALL" || isa == "DEFAULT" || isa.find("AMX") != std::string::npos;
  return allowed && __builtin_cpu_supports("amx-bf16") && at::cpu::init_amx();
}
#endif

InstructionSet look_at_machine() {
#if defined(__x86_64__)
  // ATen has detected the capability, and taken ATEN_CPU_CAPABILITY into account. If that names
  // AVX-512, nothing beyond it is used.
  const std::string capability = at::get_cpu_capability();
  if (capability.rfind("AVX512", 0) == 0) {
    const bool held = c10::utils::get_env("ATEN_CPU_CAPABILITY") == "avx512";
    return held || !__builtin_cpu_supports("avx512bf16") ? InstructionSet::kAvx512
           : has_tile_registers()                        ? InstructionSet::kAvx512Amx
                                                         : InstructionSet::kAvx512Bf16;
  }
  if (capability == "AVX2") {
    return InstructionSet::kAvx2;
  }
#endif
  return InstructionSet::kBaseline;
}

Kernels kernels_for(InstructionSet instruction_set) {
  switch (instruction_set) {
#if defined(__x86_64__)
    case InstructionSet::kAvx512Amx:
    case InstructionSet::kAvx512Bf16: {
      Kernels kernels = avx512_kernels();
      const auto& bfloat16 = instruction_set == InstructionSet::kAvx512Amx
                                 ? amx_bfloat16_kernels()
                                 : avx512_bfloat16_kernels();
      std::get<ProductKernels<c10::BFloat16>>(kernels.products) = std::get<0>(bfloat16.products);
      for (size_t cell = 0; cell < kCellTypes; ++cell) {
        std::get<SequenceKernels<c10::BFloat16>>(kernels.sequence[cell]) =
            std::get<0>(bfloat16.sequence[cell]);
      }
      return kernels;
    }
    case InstructionSet::kAvx512:
      return avx512_kernels();
    case InstructionSet::kAvx2:
      return avx2_kernels();
#endif
    default:
      return baseline_kernels();
  }
}

}  // namespace

InstructionSet instruction_set() {
  static const InstructionSet found = look_at_machine();
  return found;
}

const Kernels& kernels() {
  static const Kernels chosen = kernels_for(instruction_set());
  return chosen;
}

}  // namespace lltm::cpu
