// The two formulas of which all estimates are made: of kernels whose blocks take turns, and of the
// library's products.
#pragma once

#include "facts.h"

#include <algorithm>

namespace lltm::cuda {

/// What the blocks of a kernel take. Those that are resident at once are a wave; a block multiplies
/// chunks of K, or runs steps, and does the rest. The chunks take no less than `reading` weights
/// from memory beside them, and all no less than `least`.
inline double tiled_time(
    double waves, double chunks, double chunk, double rest, double reading = 0, double least = 0) {
  return std::max(std::max(waves * chunks * chunk, reading) + waves * rest, least);
}

/// A product by the library, which multiplies while it reads the weights: its launch, operations
/// and bytes, and how many of these there are per microsecond.
struct LibraryProduct {
  double launch, operations, rate;
  double bytes = 0, read_rate = 1;

  double time() const { return launch + std::max(operations / rate, bytes / read_rate); }
};

}  // namespace lltm::cuda
