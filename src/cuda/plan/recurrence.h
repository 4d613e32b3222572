// The kernels that run all steps of a sequence in one launch: what each supports, and its time.
// Plain host code that queries no device.
#pragma once

#include "../kernels/recurrence/tile.h"
#include "../problem.h"
#include "choice.h"
#include "facts.h"
#include "grid.h"
#include "shape.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace lltm::cuda {

/// What a recurrence knows of a sequence, or of its backward.
struct RecurrenceShape : CommonShape {
  using Tile = RecurrenceTile;
  /// Microseconds of a step: of blocks by themselves at least `latency`, and `busy` for each of
  /// those that a multiprocessor runs at once; of a cluster `latency`, and `busy` for each of its
  /// rows, which its blocks send to each other.
  struct Step {
    double latency, busy;
  };
  struct Times {
    Step forward, backward;
  };

  bool backward = false;
  // Of the recurrence: one per chunk of z_x; 0 if the workspace has no room for z_x of a row.
  int64_t launches = 1;
  // In 16 bits, whether pairs of neighboring elements are aligned (kernels/recurrence/pairs.h), and
  // those of the input's rows.
  bool in_pairs = true, input_in_pairs = true;

  bool operator==(const RecurrenceShape&) const = default;
  /// How often all steps are run, for some of the rows each: a chunk of z_x is then of one step.
  int64_t parts() const { return std::max<int64_t>(launches / std::max<int64_t>(steps, 1), 1); }
};

/// One kernel for all steps, forward and backward. The estimate is of all steps, the product with
/// the inputs of a forward included, whether the kernel computes it or another one.
using RecurrenceCandidate = Candidate<RecurrenceShape>;
using RecurrenceChoice = Choice<RecurrenceShape>;
template <>
std::span<const RecurrenceCandidate> candidates();

/// How the kernel across the grid divides a sequence, if it can.
std::optional<GridPlan> plan_grid(const RecurrenceShape& shape, const DeviceFacts& device);

/// Why no kernel of a group, of blocks by themselves or of clusters, takes a sequence, in words
/// that follow "LLTM_CUDA_PATH=block "; or empty.
std::string why_no_recurrence(const RecurrenceShape& shape, const DeviceFacts& device, Group group);

/// The rows that a block or a cluster takes at once: in clusters as few as keep all that are
/// resident busy.
int rows_of_group(const RecurrenceTile& tile, int64_t rows, const DeviceFacts& device);

/// The candidate with the least time, or null if the steps should be run one by one, which takes
/// time_of_steps microseconds. A selection of kernels for single steps means these; a selected
/// candidate that does not support the sequence falls back to them.
const RecurrenceCandidate* choose_recurrence(const RecurrenceShape& shape,
                                             const DeviceFacts& device,
                                             const Selection& selection,
                                             double time_of_steps);

/// Whether kernels of this library should compute d_weights and d_input from d_gates of `batch`
/// rows of one or more steps (gradient_products.cu). Which of them are wanted must not matter.
bool are_small_gradient_products(const CommonShape& shape);

/// How such d_weights are divided into parts, which fill the GPU together with d_input.
GradientParts parts_of_weight_gradient(const CommonShape& shape, const DeviceFacts& device);

}  // namespace lltm::cuda
