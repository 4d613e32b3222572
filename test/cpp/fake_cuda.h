// A CUDA runtime and driver without a GPU, for the host's half of a launch: they take what TMA's
// and the launch's documentation allows, and note what it does not. One of their calls fails where
// a test says so.
#pragma once

#include <string>
#include <vector>

namespace lltm::test {

struct FakeCuda {
  int launches = 0, maps = 0;
  std::vector<std::string> violations;
  /// The number of the current context.
  unsigned long long context = 1;
  /// So many calls go through, and the next one fails; negative: none does.
  int calls_before_failure = -1;
  bool has_failed = false;
};
/// Of all calls since the last clearing.
FakeCuda& fake_cuda();

}  // namespace lltm::test
