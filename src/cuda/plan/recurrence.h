// The kernels that run all steps of a sequence in one launch: what each supports, and its time.
// Plain host code that queries no device.
#pragma once

#include "../kernels/grid/tile.h"
#include "choice.h"

#include <cstdint>
#include <optional>
#include <string>

namespace lltm::cuda {

struct GridPlan {
  GridTile tile;
  GridTeams teams;
  double us;  // of a step

  int rows_of_team() const { return teams.groups * kGridGroupRows; }
};

/// How the kernel across the grid divides a sequence: by the tile with the least time, or nothing
/// if no tile's teams are resident at once.
std::optional<GridPlan> plan_grid(const Shape& shape, const DeviceFacts& device);

/// Why no kernel of a group, of blocks by themselves or of clusters, takes a sequence, in words
/// that follow "LLTM_CUDA_PATH=block "; or empty.
std::string why_no_recurrence(const Shape& shape, const DeviceFacts& device, Group group);

/// The rows that a block or a cluster takes at once: in clusters as few as keep all that are
/// resident busy.
int rows_of_group(const RecurrenceTile& tile, int64_t rows, const DeviceFacts& device);

/// The candidate with the least time, or null if the steps should be run one by one, which takes
/// time_of_steps microseconds. A selection of kernels for single steps means these; a selected
/// candidate that does not support the sequence falls back to them.
const Candidate* choose_recurrence(const Shape& shape,
                                   const DeviceFacts& device,
                                   const Selection& selection,
                                   double time_of_steps);

/// Whether kernels of this library should compute d_weights and d_input from d_gates of `batch`
/// rows of one or more steps (gradient_products.cu). Which of them are wanted must not matter.
bool are_small_gradient_products(const Shape& shape);

/// How such d_weights are divided into parts, which fill the GPU together with d_input.
GradientParts parts_of_weight_gradient(const Shape& shape, const DeviceFacts& device);

}  // namespace lltm::cuda
