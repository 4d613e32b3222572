// The two formulas of which all estimates are made: of kernels whose blocks take turns, and of
// products by the library or of few rows. They alone scale what was measured to the GPU at hand.
#pragma once

#include "facts.h"

#include <algorithm>

namespace lltm::cuda {

/// What the blocks of a kernel take. Those that are resident at once are a wave; a block multiplies
/// chunks of K, or runs steps, and does the rest. The chunks take no less than `reading` weights
/// from memory beside them, and all no less than `least`.
inline double tiled_time(const DeviceFacts& device,
                         double waves,
                         double chunks,
                         double chunk,
                         double rest,
                         double reading = 0,
                         double least = 0) {
  const double of_chunks =
      std::max(waves * chunks * chunk * device.slower(), reading / device.memory());
  return std::max(of_chunks + waves * rest * device.slower(), least / device.memory());
}

/// A product that is bound by its operations or by reading its weights: its launch, operations and
/// bytes or elements, and how many of these there are per microsecond.
struct Product {
  double launch, operations, rate;
  double bytes = 0, read_rate = 1;

  double time(const DeviceFacts& device) const {
    return launch +
           std::max(operations / rate / device.operations(), bytes / read_rate / device.memory());
  }
};

}  // namespace lltm::cuda
