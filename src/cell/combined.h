// A cell whose two sides have been put together.
#pragma once

#include "sides.h"

#include <type_traits>
#include <utility>

namespace lltm::cell {

template <typename Places>
struct InOrder;
template <int... kPlace>
struct InOrder<std::integer_sequence<int, kPlace...>> {
  static constexpr int kOfGate[] = {kPlace...}, kOfInput[] = {kPlace...};
};

/// Its sums are what Cell saves: those of a number that x or h alone gives are zeros on the other
/// side. So it is a cell like those of kAdds, of more gates.
template <typename Cell>
struct Combined : Cell, InOrder<std::make_integer_sequence<int, Cell::kSaved>> {
  using Sides = Cell;
  using Places = InOrder<std::make_integer_sequence<int, Cell::kSaved>>;
  using Places::kOfGate, Places::kOfInput;
  static constexpr int kGates = Cell::kSaved, kInputs = Cell::kSaved;
  static constexpr bool kAdds = true;
};

/// The gates of its weights.
template <typename Cell>
constexpr int kGatesOfWeights = Cell::kGates;
template <typename Cell>
constexpr int kGatesOfWeights<Combined<Cell>> = Cell::kGates;

/// The first of the saved numbers that x alone gives, whose rows of h's weights are zeros, and how
/// many there are, side by side.
template <typename Cell>
constexpr int kFirstOfX = Cell::kSaved;
template <typename Cell>
constexpr int kFirstOfX<Combined<Cell>> = [] {
  int first = 0;
  while (gate_at<Cell>(first) >= 0) {
    ++first;
  }
  return first;
}();
template <typename Cell>
constexpr int kCountOfX = Cell::kGates - kGatesOfWeights<Cell>;

/// What has one number of each kind for every saved one.
template <typename Cell>
using CombinedOf = std::conditional_t<Cell::kAdds, Cell, Combined<Cell>>;

}  // namespace lltm::cell
