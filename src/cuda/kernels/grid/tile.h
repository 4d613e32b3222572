#pragma once

#include "../../problem.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

namespace lltm::cuda {

/// What a kernel of the recurrence across the grid is compiled for.
struct GridTile {
  int state_size;       // the largest that it takes
  int units;            // of 8 columns of the state: those of a block
  int warps;            // of a block
  int unit_groups = 1;  // groups of warps have units of their own; the warps of one share K
  // Granules of K, of those that a warp has, whose weights lie in shared memory instead of
  // registers.
  int shared_granules = 0;

  bool operator==(const GridTile&) const = default;
  constexpr int threads() const { return 32 * warps; }
  LLTM_HOST_DEVICE constexpr int shares() const { return warps / unit_groups; }  // of K
};

/// The rows of a group, which are multiplied together, and the most rows of a team.
constexpr int kGridGroupRows = 8, kGridRows = 64;

/// Slots of V, each for a step, and after how many steps threads have a fence (exchange.cuh).
constexpr int kGridSlots = 32, kGridFence = 15;
static_assert(kGridSlots > 2 * kGridFence);

/// From this much shared memory on, a block of the forward has one buffer of sums instead of two.
constexpr int kGridScarceBytes = 84 * 1024;

/// A granule of V or K: what a warp loads at once, 16 bytes a lane. For the forward these are 32
/// columns of h in 16 bits, or 16 in two planes of 16 bits each.
constexpr int kGranuleBytes = 512;
LLTM_HOST_DEVICE constexpr int granule_columns(Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kFloat32 ? 16 : 32;
}
/// A granule has four runs of 16 bytes a row. For the backward, each is some columns of one gate.
LLTM_HOST_DEVICE constexpr int columns_of_run(Arithmetic arithmetic) {
  return is_float(arithmetic) ? 4 : 8;
}

/// The granules of all of V for a state of `size`.
constexpr int forward_granules(Arithmetic arithmetic, int64_t size) {
  return static_cast<int>(ceil_div(size, granule_columns(arithmetic)));
}
constexpr int backward_granules(Arithmetic arithmetic, int gates, int64_t size) {
  return static_cast<int>(ceil_div(gates * ceil_div(size, 8) * 8 / columns_of_run(arithmetic), 4));
}

/// How rows and columns are divided: a team of `blocks` blocks has all columns of the state and
/// takes `groups` groups of rows through all steps, one after the other. Teams never meet.
struct GridTeams {
  int teams, blocks, groups;

  bool operator==(const GridTeams&) const = default;
};

/// The teams for a problem if all their blocks can be resident at once: blocks wait for each other.
constexpr std::optional<GridTeams> grid_teams(const GridTile& tile,
                                              int64_t state_size,
                                              int64_t rows,
                                              int resident_blocks) {
  if (state_size > tile.state_size) {
    return std::nullopt;
  }
  const int64_t blocks = ceil_div(ceil_div(state_size, 8), tile.units);
  const int64_t most = resident_blocks / blocks, groups_of_rows = ceil_div(rows, kGridGroupRows);
  const int64_t groups = most == 0 ? 0 : ceil_div(groups_of_rows, most);
  if (groups == 0 || groups * kGridGroupRows > kGridRows) {
    return std::nullopt;
  }
  return GridTeams{static_cast<int>(ceil_div(groups_of_rows, groups)),
                   static_cast<int>(blocks),
                   static_cast<int>(groups)};
}

/// The granules of K, the tiles of 16 rows of weights that a warp has of each, and the granules of
/// V of a tile's rows.
struct GridSizes {
  int granules, row_tiles_of_weights;

  constexpr GridSizes(const GridTile& tile, int gates, Arithmetic arithmetic, bool backward)
      : granules(backward ? backward_granules(arithmetic, gates, tile.state_size)
                          : forward_granules(arithmetic, tile.state_size)),
        row_tiles_of_weights(
            static_cast<int>(ceil_div(tile.units / tile.unit_groups * (backward ? 1 : gates), 2))) {
  }
  constexpr int granules_of_warp(const GridTile& tile) const {
    return static_cast<int>(ceil_div(granules, tile.shares()));
  }
  constexpr int64_t weight_bytes_of_block(const GridTile& tile) const {
    return int64_t{tile.warps} * granules_of_warp(tile) * row_tiles_of_weights * 2 * kGranuleBytes;
  }
  constexpr int64_t slot_bytes_of_team(const GridTile& tile, int groups) const {
    return int64_t{groups} * granules_of_warp(tile) * tile.shares() * kGranuleBytes;
  }
};

/// Where the parts of a workspace start (grid.h), in bytes, and how many there are in all.
struct GridWorkspaceSizes {
  int64_t of_weights, of_h0, slots, bytes;
};

constexpr GridWorkspaceSizes grid_workspace(const GridTile& tile,
                                            const GridTeams& teams,
                                            int gates,
                                            Arithmetic arithmetic,
                                            bool backward,
                                            int64_t rows) {
  const GridSizes sizes(tile, gates, arithmetic, backward);
  const auto aligned = [](int64_t bytes) { return ceil_div(bytes, 256) * 256; };
  const bool scaled = is_float(arithmetic) && !backward;
  GridWorkspaceSizes of{};
  of.of_weights = sizes.weight_bytes_of_block(tile) * teams.blocks;
  of.of_h0 = of.of_weights + aligned(scaled ? 4 * teams.blocks * tile.units * 8 * gates : 0);
  of.slots = of.of_h0 + aligned(scaled ? 4 * rows : 0);
  of.bytes = of.slots + kGridSlots * teams.teams * sizes.slot_bytes_of_team(tile, teams.groups);
  return of;
}

/// The shared memory of a block whose team takes `groups` groups of rows, in bytes.
template <typename Cell>
constexpr int grid_shared_bytes(const GridTile& tile,
                                Arithmetic arithmetic,
                                bool backward,
                                int groups) {
  constexpr int kGates = Cell::kGates, kOfCell = Cell::kReadsOldCell ? 2 : 1;
  const GridSizes sizes(tile, kGates, arithmetic, backward);
  const bool staged = tile.unit_groups > 1, scaled = is_float(arithmetic) && !backward;
  const int sets = 2 * tile.units, warps = std::min(tile.warps, sets);
  const int word = 4 * 32 * warps * static_cast<int>(ceil_div(sets, tile.warps));
  const int weights =
      tile.warps * tile.shared_granules * sizes.row_tiles_of_weights * 2 * kGranuleBytes;
  const int sums = tile.warps * sizes.row_tiles_of_weights * 4 * 32 * 4;
  const int stage = staged ? sizes.granules_of_warp(tile) * tile.shares() * kGranuleBytes : 0;
  const int inputs = 4 * word * (backward ? Cell::kSaved + 2 + kOfCell : Cell::kInputs);
  const int buffers =
      !backward && (staged || weights + 2 * sums + inputs > kGridScarceBytes) ? 1 : 2;
  const int kept = backward ? 1 + kOfCell : scaled ? 3 : 2;
  return weights + buffers * sums + stage + inputs + (scaled ? kGates * word : 0) +
         groups * kept * word;
}

// The tiles of the forward. Weights take half of a multiprocessor's registers: 16 words a thread
// and granule for a unit of an LSTM.
inline constexpr auto kGridForwardTiles = std::to_array<GridTile>({
    {.state_size = 256, .units = 2, .warps = 8},
    {.state_size = 256, .units = 4, .warps = 8, .unit_groups = 4},
    {.state_size = 384, .units = 2, .warps = 6},
    {.state_size = 384, .units = 4, .warps = 8, .unit_groups = 4},
    {.state_size = 384, .units = 6, .warps = 12, .unit_groups = 6},
    {.state_size = 512, .units = 2, .warps = 8},
    {.state_size = 512, .units = 4, .warps = 8, .unit_groups = 4},
    {.state_size = 768, .units = 2, .warps = 8},
    {.state_size = 768, .units = 3, .warps = 8},
    {.state_size = 1024, .units = 2, .warps = 8},
    {.state_size = 1024, .units = 3, .warps = 8, .shared_granules = 1},
});
/// Those in float32, whose granules have half as many columns.
inline constexpr auto kGridForwardFloat32Tiles = std::to_array<GridTile>({
    {.state_size = 128, .units = 2, .warps = 8},
    {.state_size = 256, .units = 2, .warps = 8},
    {.state_size = 256, .units = 4, .warps = 8, .unit_groups = 4},
    {.state_size = 384, .units = 2, .warps = 8},
    {.state_size = 384, .units = 3, .warps = 8},
    {.state_size = 512, .units = 2, .warps = 8},
    {.state_size = 768, .units = 1, .warps = 8},
    {.state_size = 768, .units = 2, .warps = 8, .shared_granules = 2},
    {.state_size = 1024, .units = 1, .warps = 8},
    {.state_size = 1024, .units = 2, .warps = 8, .shared_granules = 4},
});

// The tiles of the backward, whose K is all gates.
inline constexpr auto kGridBackwardTiles = std::to_array<GridTile>({
    {.state_size = 256, .units = 2, .warps = 8},
    {.state_size = 256, .units = 4, .warps = 8},
    {.state_size = 384, .units = 2, .warps = 8},
    {.state_size = 384, .units = 4, .warps = 8},
    {.state_size = 512, .units = 2, .warps = 8},
    {.state_size = 512, .units = 4, .warps = 8},
    {.state_size = 768, .units = 2, .warps = 8},
    {.state_size = 1024, .units = 2, .warps = 8},
});
/// Those of float32 tensors.
inline constexpr auto kGridBackwardFloat32Tiles = std::to_array<GridTile>({
    {.state_size = 128, .units = 2, .warps = 8},
    {.state_size = 256, .units = 2, .warps = 8},
    {.state_size = 256, .units = 4, .warps = 8},
    {.state_size = 384, .units = 2, .warps = 8},
    {.state_size = 512, .units = 2, .warps = 8},
});

/// Whether a cell has the tile. To save code, one that does not add its sides lacks those that take
/// at most 8 % less time than others.
constexpr bool has_grid_tile(bool adds,
                             Arithmetic arithmetic,
                             bool backward,
                             const GridTile& tile) {
  return adds || backward || arithmetic == Arithmetic::kFloat32 ||
         (tile.state_size != 256 && tile != GridTile{.state_size = 512, .units = 2, .warps = 8});
}

template <Arithmetic kArithmetic, bool kBackward>
constexpr const auto& grid_tiles() {
  if constexpr (kBackward && is_float(kArithmetic)) {
    return kGridBackwardFloat32Tiles;
  } else if constexpr (kBackward) {
    return kGridBackwardTiles;
  } else if constexpr (kArithmetic == Arithmetic::kFloat32) {
    return kGridForwardFloat32Tiles;
  } else {
    return kGridForwardTiles;
  }
}

}  // namespace lltm::cuda
