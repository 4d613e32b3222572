// Forces a path of the CUDA kernels, and names the tests that do.
#pragma once

#include "lltm_testing/cell_reference.h"

#include <c10/core/ScalarType.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <tuple>

namespace lltm::test {

/// Sets LLTM_CUDA_PATH for its own lifetime.
class ForcedPath {
 public:
  explicit ForcedPath(const std::string& path) { setenv(kVariable, path.c_str(), 1); }
  ~ForcedPath() { unsetenv(kVariable); }
  ForcedPath(const ForcedPath&) = delete;
  ForcedPath& operator=(const ForcedPath&) = delete;

 private:
  static constexpr const char* kVariable = "LLTM_CUDA_PATH";
};

using PathCase = std::tuple<std::string, at::ScalarType, Sizes>;

inline std::string case_name(std::string path, at::ScalarType dtype, const Sizes& sizes) {
  std::ranges::replace(path, ':', '_');
  return "CUDA_" + path + "_" + c10::toString(dtype) + "_" + std::to_string(sizes.batch) + "_" +
         std::to_string(sizes.input_features) + "_" + std::to_string(sizes.state_size);
}

inline std::string path_case_name(const testing::TestParamInfo<PathCase>& info) {
  const auto& [path, dtype, sizes] = info.param;
  return case_name(path, dtype, sizes);
}

}  // namespace lltm::test
