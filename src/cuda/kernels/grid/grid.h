// All steps of a sequence in one launch, by all multiprocessors: blocks of a team share the weights
// of h, and exchange h, or in the backward the gradients of all gates, through L2 (exchange.cuh).
// sm_80 and newer. The problems are those of kernels/recurrence.
//
// Blocks of a team wait for each other, so all blocks of a launch have to be resident at once. A
// cooperative launch guarantees that, or returns cudaErrorCooperativeLaunchTooLarge.
//
// Every launch function enqueues on `stream` of the current device, needs at least one row, one
// column of the state and one step, and returns the error of its launch.
#pragma once

#include "../recurrence/recurrence.h"
#include "tile.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace lltm::cuda {

/// Memory that the launches of a call share: the weights of h as the threads take them to
/// registers, and the slots of V.
struct GridWorkspace {
  uint4* weights;
  // By powers of two, in float32: what the products with each row of the weights, and with each
  // row of h0, are to be multiplied by.
  float *of_weights, *of_h0;
  unsigned char* slots;
};

/// Where the parts of a workspace start, in bytes, and how many there are in all.
struct GridWorkspaceSizes {
  int64_t of_weights, of_h0, slots, bytes;

  GridWorkspace at(void* workspace) const {
    auto* const first = static_cast<unsigned char*>(workspace);
    return {reinterpret_cast<uint4*>(first),
            reinterpret_cast<float*>(first + of_weights),
            reinterpret_cast<float*>(first + of_h0),
            first + slots};
  }
};

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
    return int64_t{groups} * tile.row_tiles * granules_of_warp(tile) * tile.shares() *
           kGranuleBytes;
  }
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

/// A problem and how it is divided.
template <typename Problem>
struct OfGrid : Problem {
  GridTeams grid;
  GridWorkspace workspace;
#ifdef LLTM_GRID_POLLS
  int* timed_out;  // set if a wait took so many polls, for debugging
#endif
};

/// Whether the weights are in the workspace already, from an earlier launch of the same call.
template <typename Cell, Arithmetic kArithmetic>
cudaError_t launch_recurrence_grid(
    const OfGrid<RecurrenceForward<TensorElement<kArithmetic>>>& problem,
    const GridTile& tile,
    bool has_weights,
    cudaStream_t stream);
template <typename Cell, Arithmetic kArithmetic>
cudaError_t launch_recurrence_grid(
    const OfGrid<RecurrenceBackward<TensorElement<kArithmetic>>>& problem,
    const GridTile& tile,
    cudaStream_t stream);

}  // namespace lltm::cuda
