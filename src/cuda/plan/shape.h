// What the planner knows of every problem: a cell, a step or all steps of a sequence, or one of
// their products.
#pragma once

#include "../../cell/with_cell.h"
#include "../problem.h"

#include <cstdint>
#include <optional>

namespace lltm::cuda {

/// The sizes, to which each operator's shape adds what only its candidates ask for.
struct CommonShape {
  CellType cell = CellType::kLltm;
  std::optional<Arithmetic> arithmetic{};  // none for float64
  int64_t steps = 1;
  // Rows of one step; of a product over all steps, those of all of them.
  int64_t batch = 0;
  int64_t input_features = 0, state_size = 0;
  int64_t columns = 0;  // of all gates, if not the cell's: of saved numbers, or of some gates

  bool operator==(const CommonShape&) const = default;
  int64_t width() const { return state_size + input_features; }
  int64_t gates() const { return columns > 0 ? columns : gates_of(cell) * state_size; }
  int element_bytes() const { return arithmetic ? element_size(*arithmetic) : 8; }
  bool in_floats() const { return arithmetic && is_float(*arithmetic); }
  /// The chunks of K of so many columns. Not for float64.
  int64_t chunks(int64_t k) const { return ceil_div(k, chunk_columns(*arithmetic)); }
  /// The size of the weights, and of their gradient.
  double weights_bytes() const { return static_cast<double>(gates() * width()) * element_bytes(); }
};

}  // namespace lltm::cuda
