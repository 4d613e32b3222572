// A cell as a value, for code that does not depend on its formula.
#pragma once

#include "cell_type.h"
#include "gru.h"
#include "lltm.h"
#include "lstm.h"

#include <c10/util/ArrayRef.h>

namespace lltm {

/// The constants of a cell's policy, which math.h describes.
struct CellDescriptor {
  CellType type;     // the place in tables of kernels
  const char* name;  // of the operator of its sequences
  int gates, inputs, saved;
  c10::ArrayRef<int> of_input, of_gate;
  bool adds;
  bool carries_h;
  bool reads_old_cell;
};

namespace cell {

template <typename Cell>
constexpr CellDescriptor describe(CellType type, const char* name) {
  return {type,
          name,
          Cell::kGates,
          Cell::kInputs,
          Cell::kSaved,
          Cell::kOfInput,
          Cell::kOfGate,
          Cell::kAdds,
          Cell::kCarriesH,
          Cell::kReadsOldCell};
}

inline constexpr CellDescriptor kLltm = describe<Lltm>(CellType::kLltm, "lltm::sequence");
inline constexpr CellDescriptor kLstm = describe<Lstm>(CellType::kLstm, "lltm::lstm");
inline constexpr CellDescriptor kGru = describe<Gru>(CellType::kGru, "lltm::gru");

}  // namespace cell

/// That of a cell by its number.
constexpr const CellDescriptor& descriptor_of(CellType type) {
  constexpr const CellDescriptor* kAll[kCellTypes] = {&cell::kLltm, &cell::kLstm, &cell::kGru};
  return *kAll[static_cast<size_t>(type)];
}

}  // namespace lltm
