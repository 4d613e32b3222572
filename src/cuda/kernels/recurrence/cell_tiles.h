// The tiles of each cell (tile.h).
#pragma once

#include "tile.h"

namespace lltm::cuda {

/// For a cell of so many gates and saved numbers.
template <int kGates, int kSaved>
inline constexpr auto kFmaTilesOf = kFmaTiles<kGates>;
template <int kGates, int kSaved>
inline constexpr auto kMmaTilesOf = kMmaTiles<kGates>;

/// Of the GRU: some of those for 3 gates. None by multiply-adds multiplies the input.
template <>
inline constexpr auto kFmaTilesOf<3, 4> = fma_tiles<14>({
    {.state_size = 32, .rows = {1, 4}},
    {.state_size = 64, .rows = {1, 4}},
    {.state_size = 96, .rows = {1}},
    {.state_size = 128, .rows = {1, 2, 4}},
    {.state_size = 256, .rows = {1, 2, 4}, .cluster = 4},
    {.state_size = 512, .rows = {1, 2, 4}, .cluster = 16},
});
template <>
inline constexpr auto kMmaTilesOf<3, 4> = mma_tiles({
    {.state_size = 128, .rows = 32},
    {.state_size = 128, .rows = 32, .x_inside = true},
    {.state_size = 256, .rows = 32, .cluster = 4},
    {.state_size = 384, .rows = 32, .cluster = 6},
    {.state_size = 512, .rows = 16, .cluster = 8},
});

}  // namespace lltm::cuda
