// A CUDA runtime and driver without a GPU, for the host's half of a launch: they take what TMA's
// and the launch's documentation allows, and note what it does not.
#pragma once

#include <string>
#include <vector>

namespace lltm::test {

struct FakeCuda {
  int launches = 0, maps = 0;
  std::vector<std::string> violations;
};
/// Of all calls since the last clearing.
FakeCuda& fake_cuda();

}  // namespace lltm::test
