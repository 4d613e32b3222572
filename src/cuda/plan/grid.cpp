// How the recurrence across the grid divides a sequence, and how long its steps take.
#include "../kernels/grid/tile.h"
#include "sequence.h"

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
// clang-format off
constexpr StepOfGroups kForward[] = {
    {1.17, 0.92}, {1.43, 1.10},                // of a state of 256
    {1.11, 0.98}, {1.36, 1.17}, {2.02, 1.55},  // 384
    {1.25, 1.06}, {1.66, 1.32},                // 512
    {1.29, 1.10}, {1.80, 1.50},                // 768
    {1.55, 1.12}, {2.15, 1.75}};               // 1024
constexpr StepOfGroups kForwardFloat32[] = {
    {1.29, 1.10},                              // 128
    {1.40, 1.12}, {1.90, 1.52},                // 256
    {1.45, 1.30}, {2.10, 1.85},                // 384
    {1.75, 1.36},                              // 512
    {1.75, 1.45}, {2.70, 2.34},                // 768
    {1.95, 1.75}, {3.40, 3.10}};               // 1024
constexpr StepOfGroups kBackward[] = {
    {1.45, 1.36}, {2.03, 1.66},                // 256
    {1.81, 1.55}, {2.17, 1.98},                // 384
    {2.14, 1.85}, {2.73, 2.55},                // 512
    {2.31, 2.36}, {3.45, 3.36}};               // 768 and 1024
// clang-format on
// Of states of 128, 256 twice, 384 and 512.
constexpr StepOfGroups kBackwardTf32[] = {
    {1.33, 1.20}, {2.05, 1.75}, {2.52, 2.25}, {2.39, 2.15}, {3.04, 3.05}};
constexpr StepOfGroups kBackwardFloat32[] = {
    {1.57, 1.45}, {2.38, 2.20}, {3.40, 3.38}, {3.07, 2.95}, {4.04, 4.10}};

struct TilesAndTimes {
  std::span<const GridTile> tiles;
  const StepOfGroups* times;

  template <size_t kCount>
  constexpr TilesAndTimes(const std::array<GridTile, kCount>& tiles,
                          const StepOfGroups (&times)[kCount])
      : tiles(tiles), times(times) {}
};

TilesAndTimes tiles_of(Arithmetic arithmetic, bool backward) {
  switch (arithmetic) {
    case Arithmetic::kFloat32:
      return backward ? TilesAndTimes(kGridBackwardFloat32Tiles, kBackwardFloat32)
                      : TilesAndTimes(kGridForwardFloat32Tiles, kForwardFloat32);
    case Arithmetic::kTf32:
      return backward ? TilesAndTimes(kGridBackwardFloat32Tiles, kBackwardTf32)
                      : TilesAndTimes(kGridForwardTiles, kForward);
    default:
      return backward ? TilesAndTimes(kGridBackwardTiles, kBackward)
                      : TilesAndTimes(kGridForwardTiles, kForward);
  }
}

}  // namespace

std::optional<GridPlan> plan_grid(const Shape& shape, const DeviceFacts& device) {
  const Arithmetic arithmetic = *shape.arithmetic;
  const bool backward = shape.backward;
  const auto [tiles, times] = tiles_of(arithmetic, backward);
  const int gates = gates_of(shape.cell);
  const double of_three_gates = gates > 3 ? 1 : backward ? 0.82 : 0.92;
  std::optional<GridPlan> best;
  for (size_t i = 0; i < tiles.size(); ++i) {
    const GridTile& tile = tiles[i];
    const std::optional<GridTeams> teams =
        grid_teams(tile, shape.state_size, shape.batch, device.multiprocessors);
    const bool fits = teams && with_cell(shape.cell, [&]<typename Cell>() {
                        return has_grid_tile(Cell::kAdds, arithmetic, backward, tile) &&
                               grid_shared_bytes<Cell>(tile, arithmetic, backward, teams->groups) <=
                                   device.shared_bytes_a_block;
                      });
    if (!fits || grid_workspace(tile, *teams, gates, arithmetic, backward, shape.batch).bytes >
                     kMostWorkspaceBytes) {
      continue;
    }
    const double us = of_three_gates *
                      std::max(times[i].one, teams->groups > 1 ? teams->groups * times[i].each : 0);
    if (!best || us < best->us) {
      best = GridPlan{tile, *teams, us};
    }
  }
  return best;
}

}  // namespace lltm::cuda
