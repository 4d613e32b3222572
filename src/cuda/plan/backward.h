// Which kernels compute a backward: of the candidates that support a problem, the one with the
// least estimated time. Plain host code that queries no device.
#pragma once

#include "../problem.h"
#include "choice.h"
#include "facts.h"
#include "shape.h"

#include <cstdint>
#include <span>

namespace lltm::cuda {

/// What the candidates know of a problem.
struct BackwardShape : CommonShape {
  using Tile = TileShape;
  struct Times {};  // the tiles are chosen with a plan, and have theirs in costs.h

  // Whether TMA can describe input, old_h, both column ranges of weights, and contiguous rows of
  // state_size elements in place.
  bool vector_rows = true;
  // If false, only the products for d_weights and d_input: those of all steps of a sequence.
  bool forms_d_old_h = true;

  bool operator==(const BackwardShape&) const = default;
  /// Tiles across the columns of [h | x]. No tile contains columns of both.
  int64_t column_tiles(int64_t columns) const {
    return ceil_div(state_size, columns) + ceil_div(input_features, columns);
  }
  /// The same for d_old_h and d_input, counting only what is computed.
  int64_t state_column_tiles(int64_t columns) const {
    return forms_d_old_h ? column_tiles(columns) : ceil_div(input_features, columns);
  }
};

/// The time to pack what TMA cannot describe of contiguous operands, if there is anything.
/// Not for products by wgmma in TF32.
inline double packing_time(const BackwardShape& s, bool by_wgmma, const DeviceFacts& device) {
  if (s.vector_rows) {
    return 0;
  }
  const auto is_whole = [&](int64_t columns) { return columns * s.element_bytes() % 16 == 0; };
  const bool in_halves = has_weights_in_halves(*s.arithmetic, by_wgmma);
  const int64_t columns = !is_whole(s.width())                   ? s.width()
                          : in_halves && !is_whole(s.state_size) ? s.input_features
                                                                 : 0;
  return device.costs->packing.time(static_cast<double>(s.batch * s.width() + s.gates() * columns) *
                                    s.element_bytes());
}

/// The plan of the products by wgmma with the least estimated time, without that of d_gates: in 16
/// bits and TF32, and in float32. The plan, and so the order of all sums, depends only on the
/// sizes, not on which gradients are wanted.
Estimate choose_gradient_plan(const BackwardShape& shape, const DeviceFacts& device);
Estimate choose_float32_gradient_plan(const BackwardShape& shape, const DeviceFacts& device);

/// One way to compute a backward: those with few rows all of it, the others the products. None
/// supports a number of ranks.
using BackwardCandidate = Candidate<BackwardShape>;
using BackwardChoice = Choice<BackwardShape>;
template <>
std::span<const BackwardCandidate> candidates();

}  // namespace lltm::cuda
