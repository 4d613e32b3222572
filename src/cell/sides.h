// Which number of each side of a cell belongs to a saved one, for loops over what is saved that the
// compiler unrolls. Device code cannot index the arrays of a policy.
#pragma once

#include "math.h"

#include <type_traits>

namespace lltm::cell {

/// The sum with h that is added to a saved number, or -1 if there is none.
template <typename Cell, int kGate = 0>
LLTM_HOST_DEVICE constexpr int gate_at(int saved) {
  if constexpr (kGate == Cell::kGates) {
    return -1;
  } else {
    return saved == std::integral_constant<int, Cell::kOfGate[kGate]>::value
               ? kGate
               : gate_at<Cell, kGate + 1>(saved);
  }
}

/// The same of the numbers that x gives.
template <typename Cell, int kInput = 0>
LLTM_HOST_DEVICE constexpr int input_at(int saved) {
  if constexpr (kInput == Cell::kInputs) {
    return -1;
  } else {
    return saved == std::integral_constant<int, Cell::kOfInput[kInput]>::value
               ? kInput
               : input_at<Cell, kInput + 1>(saved);
  }
}

}  // namespace lltm::cell
