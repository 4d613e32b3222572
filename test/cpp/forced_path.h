// Forces a path of the CUDA kernels.
#pragma once

#include <cstdlib>
#include <string>

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

}  // namespace lltm::test
