// From the type of a cell to its policy, as CUDA kernels take it.
#pragma once

#include "cell_type.h"
#include "combined.h"
#include "gru.h"
#include "lltm.h"
#include "lstm.h"

namespace lltm {

static_assert(kCellTypes == 3, "the functions below name every cell");

/// Calls function.operator()<Cell>() for the policy of a cell that has all kernels.
template <typename Function>
constexpr auto with_cell(CellType cell, const Function& function) {
  return cell == CellType::kLltm ? function.template operator()<cell::Lltm>()
                                 : function.template operator()<cell::Lstm>();
}

/// The same, and for the GRU, which lacks kernels of a cell by itself.
template <typename Function>
constexpr auto with_every_cell(CellType cell, const Function& function) {
  return cell == CellType::kGru ? function.template operator()<cell::Gru>()
                                : with_cell(cell, function);
}

constexpr int gates_of(CellType cell) {
  return with_every_cell(cell, []<typename Cell>() { return Cell::kGates; });
}
constexpr int saved_of(CellType cell) {
  return with_every_cell(cell, []<typename Cell>() { return Cell::kSaved; });
}

}  // namespace lltm
