// The cells' formulas in ATen operations: what a step multiplies its tangents or, in the backward
// pass, its gradients with, and how that depends on the step's arguments.
//
//   d new_cell = cell_by_old d old_cell + the sum over all gates but the output gate of by_z d z
//   d new_h    = h_by_cell d new_cell + by_z d z_o
#pragma once

#include "../cell/cell_type.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace lltm::formula {

/// The gradients of what the factors are computed from.
struct FactorGradients {
  at::Tensor z;
  at::Tensor cells;
  at::Tensor old_cells;  // undefined if the cell's factors do not depend on them
};

/// The factors of every step, (T, N, H) each, in the accumulation type.
class Factors {
 public:
  /// Of z (T, N, gates), the cells after each step, and those before it (T, N, H), which are only
  /// used if reads_old_cells().
  static std::unique_ptr<Factors> of(CellType cell,
                                     const at::Tensor& z,
                                     const at::Tensor& cells,
                                     const at::Tensor& old_cells);
  static bool reads_old_cells(CellType cell) { return cell == CellType::kLstm; }

  virtual ~Factors() = default;

  /// The gradients of the sum of all factors times these gradients of them. d_cell_by_old is not
  /// read where cell_by_old is undefined.
  virtual FactorGradients backward(const std::vector<at::Tensor>& d_by_z,
                                   const at::Tensor& d_h_by_cell,
                                   const at::Tensor& d_cell_by_old) const = 0;

  std::vector<at::Tensor> by_z;  // of new_cell, and of new_h by the output gate's
  size_t output_gate;
  at::Tensor h_by_cell;
  at::Tensor cell_by_old;  // undefined: 1
};

}  // namespace lltm::formula
