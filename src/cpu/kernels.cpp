#include "kernels.h"

#include <ATen/Version.h>

#include <string>

namespace lltm::cpu {
namespace {

const Kernels& choose() {
#if defined(__x86_64__)
  // ATen has looked at the machine, and at ATEN_CPU_CAPABILITY.
  const std::string capability = at::get_cpu_capability();
  if (capability.rfind("AVX512", 0) == 0) {
    return avx512_kernels();
  }
  if (capability == "AVX2") {
    return avx2_kernels();
  }
#endif
  return baseline_kernels();
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace lltm::cpu
