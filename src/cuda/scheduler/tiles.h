// The grid of blocks that compute tiles.
#pragma once

#include "../tile/shapes.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace lltm::cuda {

/// A grid with `split` blocks per tile. Rows of tiles that exceed the limit of y continue in z, in
/// whole groups of row_group rows: a block's row is y + gridDim.y * z, which may be past the last.
inline dim3 grid_of_tiles(int64_t row_tiles, int64_t column_tiles, int split, int row_group = 1) {
  constexpr int64_t kMaxY = 65535;
  const int64_t y = std::min(row_tiles, kMaxY / row_group * row_group);
  return dim3(static_cast<unsigned>(column_tiles * split),
              static_cast<unsigned>(y),
              static_cast<unsigned>((row_tiles + y - 1) / y));
}

}  // namespace lltm::cuda
