// What the planner knows of a problem.
#pragma once

#include "../../cell/with_cell.h"
#include "../problem.h"

#include <algorithm>
#include <cstdint>
#include <optional>

namespace lltm::cuda {

/// What is computed, by candidates of its own: a cell or, by the same, a step of a sequence, whose
/// kernel starts during the previous one, and whose operands may not be packed; the backward of a
/// cell, or the products over all steps of a sequence's; a step of that; and all steps of a
/// sequence or its backward.
enum class Work { kForward, kStep, kBackward, kStepBackward, kSequence };

/// What the kernels with tiles need packed first, and where the boxes of Hopper's start.
struct ForwardPacks {
  bool input = false, weights = false, weights_input = false, old_h = false;
  int64_t input_lead = 0;  // as in ForwardProblem

  bool operator==(const ForwardPacks&) const = default;
};

struct Shape {
  Work work = Work::kForward;
  CellType cell = CellType::kLltm;
  std::optional<Arithmetic> arithmetic{};  // none for float64
  int64_t steps = 1;
  // Rows of one step; of a product over all steps, those of all of them.
  int64_t batch = 0;
  int64_t input_features = 0, state_size = 0;
  int64_t columns = 0;  // of all gates, if not the cell's: of saved numbers, or of some gates
  // Whether all rows, also of weights' columns of input, start at multiples of 16 bytes.
  bool vector_rows = true;

  // Of a cell or step:
  ForwardPacks packs{};            // the matrices that TMA cannot describe
  int64_t pack_bytes = 0;          // of these
  bool weights_in_lines = true;    // rows of weights start at cache lines, as packed rows do
  double states_across_lines = 0;  // the share of the columns of old_h and input whose rows do not

  // Of a backward: if false, only d_weights and d_input, of all steps of a sequence.
  bool forms_d_old_h = true;

  // Of a sequence:
  bool backward = false;
  // Of the recurrence: one per chunk of z_x; 0 if the workspace has no room for z_x of a row.
  int64_t launches = 1;
  // In 16 bits, whether pairs of neighboring elements are aligned (kernels/recurrence/pairs.h), and
  // those of the input's rows.
  bool in_pairs = true, input_in_pairs = true;

  bool operator==(const Shape&) const = default;
  bool is_step() const { return work == Work::kStep; }
  int64_t width() const { return state_size + input_features; }
  int64_t gates() const { return columns > 0 ? columns : gates_of(cell) * state_size; }
  int element_bytes() const { return arithmetic ? element_size(*arithmetic) : 8; }
  bool in_floats() const { return arithmetic && is_float(*arithmetic); }
  /// The chunks of K of so many columns. Not for float64.
  int64_t chunks(int64_t k) const { return ceil_div(k, chunk_columns(*arithmetic)); }
  /// The size of the weights, and of their gradient.
  double weights_bytes() const { return static_cast<double>(gates() * width()) * element_bytes(); }
  /// Tiles across the columns of [h | x]. No tile contains columns of both.
  int64_t column_tiles(int64_t columns) const {
    return ceil_div(state_size, columns) + ceil_div(input_features, columns);
  }
  /// The same for d_old_h and d_input, counting only what is computed.
  int64_t state_column_tiles(int64_t columns) const {
    return forms_d_old_h ? column_tiles(columns) : ceil_div(input_features, columns);
  }
  /// How often all steps are run, for some of the rows each: a chunk of z_x is then of one step.
  int64_t parts() const { return std::max<int64_t>(launches / std::max<int64_t>(steps, 1), 1); }
  /// That of a step of a sequence's backward, (batch, gates) by (gates, state_size): gates are all
  /// saved numbers, and there are no input_features.
  Shape step_backward() const {
    Shape step = *this;
    step.work = Work::kStepBackward;
    step.columns = saved_of(cell) * state_size;
    step.input_features = 0;
    return step;
  }
};

}  // namespace lltm::cuda
