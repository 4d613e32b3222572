// How the recurrence across the grid divides a sequence, and how long its steps take.
// Plain host code that queries no device.
#pragma once

#include "../../cell/cell_type.h"
#include "../kernels/grid/tile.h"
#include "facts.h"

#include <cstdint>
#include <optional>

namespace lltm::cuda {

struct GridPlan {
  GridTile tile;
  GridTeams teams;
  double us;  // of a step

  int rows_of_team() const { return teams.groups * kGridGroupRows; }
};

/// The shared memory of a block (kernels/grid/tile.h).
int grid_shared_bytes(
    CellType cell, const GridTile& tile, Arithmetic arithmetic, bool backward, int groups);

/// The tile with the least time, or nothing if no tile's teams are resident at once.
std::optional<GridPlan> plan_grid(CellType cell,
                                  Arithmetic arithmetic,
                                  int64_t state_size,
                                  int64_t rows,
                                  bool backward,
                                  const DeviceFacts& device);

}  // namespace lltm::cuda
