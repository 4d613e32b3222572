// The grid of blocks that form tiles.
#pragma once

#include "../tile/shapes.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace lltm::cuda {

/// `split` blocks for each tile. Rows of tiles, in groups of row_group that stay together, go on in
/// z where y cannot count them: row y + gridDim.y * z, which may be beyond the last.
inline dim3 grid_of_tiles(int64_t row_tiles, int64_t column_tiles, int split, int row_group = 1) {
  constexpr int64_t kMaxY = 65535;
  const int64_t y = std::min(row_tiles, kMaxY / row_group * row_group);
  return dim3(static_cast<unsigned>(column_tiles * split),
              static_cast<unsigned>(y),
              static_cast<unsigned>((row_tiles + y - 1) / y));
}

}  // namespace lltm::cuda
