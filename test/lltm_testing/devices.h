// The devices that a test runs on.
#pragma once

#include "lltm/lltm.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>

namespace lltm::test {

/// Whether the library under test has CUDA kernels and this machine has a GPU.
inline bool cuda_is_testable() {
  return has_cuda() && at::hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0;
}

/// Without TF32, which is the LSTM's default.
inline const bool kIsExact = [] {
  at::globalContext().setAllowTF32CuDNN(false);
  return true;
}();

}  // namespace lltm::test

#define LLTM_SKIP_UNLESS_TESTABLE(device_type)                             \
  do {                                                                     \
    if ((device_type) == at::kCUDA && !::lltm::test::cuda_is_testable()) { \
      GTEST_SKIP() << "no GPU, or the library was built without CUDA";     \
    }                                                                      \
  } while (false)
