// What becomes of the sums of rows times a panel, block by block of the depth.
#pragma once

#include "operand.h"

namespace lltm::cpu {
namespace {

/// The sums of a row are a vector of the panel each. `start(row, v)` returns what vector v begins
/// with, `partial(row, v)` where it is kept between the blocks, and `finish(row, sums)`
/// receives all of them after the last block.
template <typename Start, typename Partial, typename Finish>
struct PanelSums {
  Start start;
  Partial partial;
  Finish finish;

  /// Adds the sums of a block, row by row, for `rows` rows from `first` on.
  template <int vectors, typename Vector>
  LLTM_INLINE void add(
      int64_t first, int64_t rows, const Vector* sums, bool is_first, bool is_last) const {
    using V = decltype(start(first, 0));
    for (int64_t row = first; row < first + rows; ++row, sums += vectors) {
      V totals[vectors];
      for (int v = 0; v < vectors; ++v) {
        totals[v] = (is_first ? start(row, v) : V::load(partial(row, v))) + V(sums[v]);
      }
      if (is_last) {
        finish(row, totals);
        continue;
      }
      for (int v = 0; v < vectors; ++v) {
        totals[v].store(partial(row, v));
      }
    }
  }
};

}  // namespace
}  // namespace lltm::cpu
