// The two formulas of which all estimates are made: of kernels whose blocks take turns, and of
// products by the library or of few rows. They alone scale what was measured to the GPU at hand.
#pragma once

#include "../problem.h"
#include "facts.h"

#include <algorithm>
#include <cstdint>

namespace lltm::cuda {

/// In how many rounds `count` tiles, chunks or blocks are done, `at_once` of them in each.
inline double rounds(int64_t count, int64_t at_once) {
  return static_cast<double>(ceil_div(count, at_once));
}

/// What the blocks of a kernel take. Those that are resident at once are a wave.
struct TiledTime {
  double waves = 1;
  double chunks = 1;   // of K that a block multiplies, or steps that it runs
  double chunk;        // of each
  double rest = 0;     // of a block
  double reading = 0;  // weights from memory, beside the chunks: these take no less
  double least = 0;    // of all, if memory limits it

  double time(const DeviceFacts& device) const {
    const double of_chunks =
        std::max(waves * chunks * chunk * device.slower(), reading / device.memory());
    return std::max(of_chunks + waves * rest * device.slower(), least / device.memory());
  }
};

/// A product that is bound by its operations or by reading its weights: its launch, operations and
/// bytes or elements, and how many of these there are per microsecond.
struct Product {
  double launch, operations = 0, rate = 1;
  double bytes = 0, read_rate = 1;

  double time(const DeviceFacts& device) const {
    return launch +
           std::max(operations / rate / device.operations(), bytes / read_rate / device.memory());
  }
};

}  // namespace lltm::cuda
