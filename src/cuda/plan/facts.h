// What the estimates know about a GPU.
#pragma once

#include "../tile/shapes.h"
#include "costs.h"

#include <array>
#include <cstddef>

namespace lltm::cuda {

/// What the model knows about a GPU, or about the slice of one that a process has.
struct DeviceFacts {
  int multiprocessors = 0;
  int shared_bytes_a_block = 0;
  bool tiles = false;  // mma.sync and cp.async: sm_80 and newer
  bool wgmma = false;  // the code that runs was built for 90a
  // The number of blocks, each filling a multiprocessor, that are resident at once in clusters of
  // 1, 2, ... blocks. Zero where such clusters are not available. A cluster lies within one GPC.
  std::array<int, kLargestClusterOfAny> resident{};
  // The same of blocks of which two fill a multiprocessor: at least twice as many.
  std::array<int, kLargestClusterOfAny> resident_by_two{};
  const Costs* costs = &kCosts;

  bool operator==(const DeviceFacts&) const = default;
  bool clusters() const { return resident[1] > 0; }
  int resident_in_clusters_of(int blocks, bool by_two = false) const {
    const auto& all = by_two ? resident_by_two : resident;
    return blocks <= kLargestClusterOfAny ? all[static_cast<size_t>(blocks - 1)] : 0;
  }
};

}  // namespace lltm::cuda
