#include "kernels.h"

#include <ATen/Version.h>

#include <cstdlib>
#include <string>

namespace lltm::cpu {
namespace {

Kernels choose() {
#if defined(__x86_64__)
  // ATen has looked at the machine, and at ATEN_CPU_CAPABILITY.
  const std::string capability = at::get_cpu_capability();
  if (capability.rfind("AVX512", 0) == 0) {
    Kernels kernels = avx512_kernels();
    // Apart from ATen's names: a machine held to one has no more than the name says.
    if (__builtin_cpu_supports("avx512bf16") && std::getenv("ATEN_CPU_CAPABILITY") == nullptr) {
      std::get<ProductKernels<c10::BFloat16>>(kernels.products) = avx512_bfloat16_products();
    }
    return kernels;
  }
  if (capability == "AVX2") {
    return avx2_kernels();
  }
#endif
  return baseline_kernels();
}

}  // namespace

const Kernels& kernels() {
  static const Kernels chosen = choose();
  return chosen;
}

}  // namespace lltm::cpu
