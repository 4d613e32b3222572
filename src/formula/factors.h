// The cells' formulas in ATen operations: what a step multiplies its tangents or, in the backward
// pass, its gradients with, and how that depends on the step's arguments.
//
//   d new_cell = cell_by_old d old_cell + the sum over all z but the output gate's of by_z d z
//   d new_h    = h_by_cell d new_cell + by_z d z_o
//
// z are the numbers that are saved. A GRU has no output gate, and h is its cell state.
#pragma once

#include "../cell/descriptor.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

namespace lltm::formula {

/// The gradients of what the factors are computed from.
struct FactorGradients {
  at::Tensor z;
  // Undefined if the cell's factors do not depend on them.
  at::Tensor cells;
  at::Tensor old_cells;
};

/// The factors of every step, (T, N, H) each, in the accumulation type.
class Factors {
 public:
  /// Of z (T, N, saved), the cells after each step, and those before it (T, N, H), which are only
  /// used if the cell reads them.
  static std::unique_ptr<Factors> of(const CellDescriptor& cell,
                                     const at::Tensor& z,
                                     const at::Tensor& cells,
                                     const at::Tensor& old_cells);

  virtual ~Factors() = default;

  /// The gradients of the sum of all factors times these gradients of them. d_h_by_cell is not read
  /// where there is no output gate, nor is d_cell_by_old where cell_by_old is undefined.
  virtual FactorGradients backward(const std::vector<at::Tensor>& d_by_z,
                                   const at::Tensor& d_h_by_cell,
                                   const at::Tensor& d_cell_by_old) const = 0;

  std::vector<at::Tensor> by_z;       // of new_cell, and of new_h by the output gate's
  std::optional<size_t> output_gate;  // none: new_h is new_cell
  at::Tensor h_by_cell;               // of new_h by new_cell, undefined without an output gate
  at::Tensor cell_by_old;             // undefined: 1
};

}  // namespace lltm::formula
