// What the estimates know about a GPU.
#pragma once

#include "../tile/shapes.h"
#include "costs.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace lltm::cuda {

/// What the model knows about a GPU, or about the slice of one that a process has.
struct DeviceFacts {
  int multiprocessors = 0;
  int shared_bytes_a_block = 0;
  // MHz, and gigabytes of memory per second: those of an H100 if they are not known.
  int clock = 1980, bandwidth = 3350;
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
  // Times were measured on an H100 or H200, and are scaled by what another GPU has: how many times
  // as long a block takes, and the share of their operations and of the memory's bytes per
  // microsecond.
  double slower() const { return 1980.0 / clock; }
  double operations() const { return multiprocessors / 132.0 / slower(); }
  double memory() const { return std::min(bandwidth / 3350.0, 1.0); }
  int resident_in_clusters_of(int blocks, bool by_two = false) const {
    const auto& all = by_two ? resident_by_two : resident;
    return blocks <= kLargestClusterOfAny ? all[static_cast<size_t>(blocks - 1)] : 0;
  }
};

}  // namespace lltm::cuda
