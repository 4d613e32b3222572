// How a sequence or its backward is computed: by one kernel for all steps or one step after the
// other, by kernels or by the library. Plain host code that queries no device.
#pragma once

#include "../kernels/grid/tile.h"
#include "../step_problem.h"
#include "forward.h"

#include <cstdint>
#include <optional>
#include <string>

namespace lltm::cuda {

/// What computes z_x, the product of the inputs of one or more steps with their columns of the
/// weights, where the kernel of the steps does not multiply them itself.
enum class InputProductKernel {
  kLibrary,
  kSmall,         // kernels/recurrence/input_product.cu
  kWgmmaFloat32,  // kernels/recurrence/input_product_wgmma_float32.cu
};

struct InputProductPlan {
  InputProductKernel kernel;
  int tile_rows;  // of kWgmmaFloat32
  double us;      // an estimate

  /// The kernels of this library can be overlapped: a recurrence loads its weights meanwhile.
  bool is_own() const { return kernel != InputProductKernel::kLibrary; }
};

/// z_x of `batch` rows of one or more steps, which has a column for each of the gates. The layout
/// of the operands must not matter: the results would differ.
InputProductPlan plan_input_product(const Shape& shape, const DeviceFacts& device);

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

/// The size of the fewest equal parts of at most `most`.
constexpr int64_t in_equal_parts(int64_t count, int64_t most) {
  return ceil_div(count, ceil_div(count, most));
}

/// What carries h or the cell state from step to step.
struct CarriedBy {
  bool initial = false;  // the first step reads h0 or c0 in place
  bool result = false;   // the others read what the step before kept: output or cells
  int64_t buffers = 0;   // for the rest; two alternate

  bool operator==(const CarriedBy&) const = default;
};

/// Where the steps of a forward store everything. It depends only on sizes and strides.
struct StepsLayout : StepOperands {
  int64_t steps = 0, batch = 0;
  // Whether rows have lengths or resets of their own. Otherwise all run, starting and ending
  // together.
  bool own_rows = false;
  CarriedBy h, cell;  // the cell state in float, in c_n where that is float
  // Whether the last step writes c_n in place of cells, which are not kept.
  bool last_step_writes_c_n = false;
  // Elements of a row of z_x, in the operands' type, and of a copy of the input. Zero: the steps
  // multiply the input.
  int64_t hoisted_row = 0;

  bool operator==(const StepsLayout&) const = default;
  bool hoists_input() const { return hoisted_row > 0; }
  bool has_start() const { return own_rows || !h.initial || !cell.initial; }
  /// Elements of a row of a chunk, of z_x or of a copy of the input. Zero: there are no chunks.
  int64_t chunk_row() const {
    return hoists_input() ? hoisted_row : copies_input ? input_stride() : 0;
  }
  /// The steps of a chunk of `rows` rows.
  int64_t steps_a_chunk(int64_t rows) const;
  /// The number of rows whose part of the workspace fits its share.
  int64_t rows_at_a_time() const;

 private:
  int64_t chunk_bytes() const;
};

/// Microseconds of a step that no model estimates.
constexpr double kSlowStep = 20;

/// How the steps of a forward are run.
struct StepsPlan {
  StepsLayout layout{};
  int64_t rows_at_a_time = 0;
  ForwardPlan kernel{};   // without a candidate where there are no kernels
  double us = kSlowStep;  // of a step of all rows, with its part of z_x
  double start_us = 0;    // of what comes before and after all steps

  /// How often the steps are run, for some of the rows each; the last ones may be fewer.
  double parts() const {
    return static_cast<double>(layout.batch) / static_cast<double>(rows_at_a_time);
  }

  /// Microseconds of all steps.
  double time() const { return static_cast<double>(layout.steps) * us + start_us; }
  /// Whether the library computes the products (library/sequence.h): in float64, on GPUs older than
  /// sm_80, without steps, and for sizes at which it is faster.
  bool by_library() const { return kernel.choice.candidate == nullptr || kernel.by_library(); }
};

/// What the planner knows of a sequence. All but the first part is of the steps of a forward.
struct SequenceShape : Shape {
  StepsLayout layout{};  // if they multiply the input
  int64_t copied_input_columns = 0;
  // Only strides and alignment count, up to cache lines.
  Matrix input{}, weights{}, weights_input{};
  std::optional<Shape> one_step{};  // if the cell's kernels can compute all of it

  SequenceShape() { work = Work::kSequence; }
  bool operator==(const SequenceShape&) const = default;
};

/// One kernel for all steps or, if that is null, the cell's for the only step or, if that has no
/// candidate, the kernels of single steps.
struct SequencePlan {
  const Candidate* recurrence = nullptr;
  std::optional<GridPlan> grid{};  // of a kernel across the grid
  ForwardPlan one_step{};          // of a forward
  StepsPlan steps{};               // of a forward
  Choice gradients{};              // of a backward
};

/// The way with the least time. The steps of a forward multiply the input themselves, unless it
/// takes clearly less to compute z_x before.
SequencePlan choose_sequence(const SequenceShape& shape,
                             const DeviceFacts& device,
                             const Selection& selection);

}  // namespace lltm::cuda
