#include "grid.h"

#include "../../cell/with_cell.h"

#include <algorithm>
#include <iterator>
#include <span>

namespace lltm::cuda {
namespace {

// Beside z_x (recurrence.cpp).
constexpr int64_t kMostWorkspaceBytes = 24 << 20;

/// Microseconds of a step of one group, and of each of several groups.
struct StepOfGroups {
  double one, each;
};

// Of an LSTM, in the order of the tiles; measured on an H200. Those of an LLTM are a part of them,
// which a GRU has, too: in 56 cases measured there, no recurrence or step was faster than the
// choice by more than 7 %.
constexpr StepOfGroups kForward[] = {{1.17, 0.92},
                                     {1.43, 1.10},
                                     {1.11, 0.98},
                                     {1.36, 1.17},
                                     {2.02, 1.55},
                                     {1.25, 1.06},
                                     {1.66, 1.32},
                                     {1.29, 1.10},
                                     {1.80, 1.50},
                                     {1.55, 1.12},
                                     {2.15, 1.75}};
constexpr StepOfGroups kForwardFloat32[] = {{1.29, 1.10},
                                            {1.40, 1.12},
                                            {1.90, 1.52},
                                            {1.45, 1.30},
                                            {2.10, 1.85},
                                            {1.75, 1.36},
                                            {1.75, 1.45},
                                            {2.70, 2.34},
                                            {1.95, 1.75},
                                            {3.40, 3.10}};
constexpr StepOfGroups kBackward[] = {{1.45, 1.36},
                                      {2.03, 1.66},
                                      {1.81, 1.55},
                                      {2.17, 1.98},
                                      {2.14, 1.85},
                                      {2.73, 2.55},
                                      {2.31, 2.36},
                                      {3.45, 3.36}};
constexpr StepOfGroups kBackwardTf32[] = {
    {1.33, 1.20}, {2.05, 1.75}, {2.52, 2.25}, {2.39, 2.15}, {3.04, 3.05}};
constexpr StepOfGroups kBackwardFloat32[] = {
    {1.57, 1.45}, {2.38, 2.20}, {3.40, 3.38}, {3.07, 2.95}, {4.04, 4.10}};
static_assert(std::size(kForward) == kGridForwardTiles.size() &&
              std::size(kForwardFloat32) == kGridForwardFloat32Tiles.size() &&
              std::size(kBackward) == kGridBackwardTiles.size() &&
              std::size(kBackwardTf32) == kGridBackwardFloat32Tiles.size() &&
              std::size(kBackwardFloat32) == kGridBackwardFloat32Tiles.size());

struct TilesAndTimes {
  std::span<const GridTile> tiles;
  const StepOfGroups* times;
};

TilesAndTimes tiles_of(Arithmetic arithmetic, bool backward) {
  if (!backward) {
    return arithmetic == Arithmetic::kFloat32
               ? TilesAndTimes{kGridForwardFloat32Tiles, kForwardFloat32}
               : TilesAndTimes{kGridForwardTiles, kForward};
  }
  switch (arithmetic) {
    case Arithmetic::kFloat32:
      return {kGridBackwardFloat32Tiles, kBackwardFloat32};
    case Arithmetic::kTf32:
      return {kGridBackwardFloat32Tiles, kBackwardTf32};
    default:
      return {kGridBackwardTiles, kBackward};
  }
}

}  // namespace

int grid_shared_bytes(
    CellType cell, const GridTile& tile, Arithmetic arithmetic, bool backward, int groups) {
  return with_cell(cell, [&]<typename Cell>() {
    return grid_shared_bytes<Cell>(tile, arithmetic, backward, groups);
  });
}

std::optional<GridPlan> plan_grid(CellType cell,
                                  Arithmetic arithmetic,
                                  int64_t state_size,
                                  int64_t rows,
                                  bool backward,
                                  const DeviceFacts& device) {
  const auto [tiles, times] = tiles_of(arithmetic, backward);
  const bool adds = with_cell(cell, []<typename Cell>() { return Cell::kAdds; });
  const int gates = gates_of(cell);
  const double of_three_gates = gates > 3 ? 1 : backward ? 0.82 : 0.92;
  std::optional<GridPlan> best;
  for (size_t i = 0; i < tiles.size(); ++i) {
    const std::optional<GridTeams> teams =
        grid_teams(tiles[i], state_size, rows, device.multiprocessors);
    if (!teams || !has_grid_tile(adds, arithmetic, backward, tiles[i]) ||
        grid_shared_bytes(cell, tiles[i], arithmetic, backward, teams->groups) >
            device.shared_bytes_a_block ||
        grid_workspace(tiles[i], *teams, gates, arithmetic, backward, rows).bytes >
            kMostWorkspaceBytes) {
      continue;
    }
    const double us = of_three_gates *
                      std::max(times[i].one, teams->groups > 1 ? teams->groups * times[i].each : 0);
    if (!best || us < best->us) {
      best = GridPlan{tiles[i], *teams, us};
    }
  }
  return best;
}

}  // namespace lltm::cuda
