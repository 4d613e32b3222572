// From the type of a cell to its policy, as CUDA kernels take it.
#pragma once

#include "cell_type.h"
#include "combined.h"
#include "gru.h"
#include "lltm.h"
#include "lstm.h"

namespace lltm {

static_assert(kCellTypes == 3, "the function below names every cell");

/// Calls function.operator()<Cell>() for the policy of a cell.
template <typename Function>
constexpr auto with_cell(CellType cell, const Function& function) {
  return cell == CellType::kGru    ? function.template operator()<cell::Gru>()
         : cell == CellType::kLltm ? function.template operator()<cell::Lltm>()
                                   : function.template operator()<cell::Lstm>();
}

constexpr int gates_of(CellType cell) {
  return with_cell(cell, []<typename Cell>() { return Cell::kGates; });
}
constexpr int saved_of(CellType cell) {
  return with_cell(cell, []<typename Cell>() { return Cell::kSaved; });
}

}  // namespace lltm
