// From the type of a cell with CUDA kernels to its policy.
#pragma once

#include "cell_type.h"
#include "lltm.h"
#include "lstm.h"

namespace lltm {

/// Calls function.operator()<Cell>() for the policy of a cell.
template <typename Function>
constexpr auto with_cell(CellType cell, const Function& function) {
  return cell == CellType::kLltm ? function.template operator()<cell::Lltm>()
                                 : function.template operator()<cell::Lstm>();
}

constexpr int gates_of(CellType cell) {
  return with_cell(cell, []<typename Cell>() { return Cell::kGates; });
}

}  // namespace lltm
