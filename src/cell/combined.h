// A cell whose two sides have been put together.
#pragma once

#include <type_traits>

namespace lltm::cell {

/// Its sums are what Cell saves: those of a number that x or h alone gives are zeros on the other
/// side. So it is a cell like those of kAdds, of more gates.
template <typename Cell>
struct Combined : Cell {
  using Sides = Cell;
  static constexpr int kGates = Cell::kSaved;
};

/// What has one number of each kind for every saved one.
template <typename Cell>
using CombinedOf = std::conditional_t<Cell::kAdds, Cell, Combined<Cell>>;

}  // namespace lltm::cell
