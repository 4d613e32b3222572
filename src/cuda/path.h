// Which kernels compute a cell, for which sizes: the one place where it is decided.
//
// The environment variable LLTM_CUDA_PATH forces a path, for a test or a measurement: `hopper` (our
// own products by sm_90a's instructions), `tiles` (our own by those of sm_80) or `library`
// (products by ATen, everything pointwise in a kernel of ours). Unset, empty or `auto`: the
// measured choice of path.cpp. Another value is an error. What a path cannot compute the next one
// does: hopper has no backward in 16 bits, and needs rows that start at 16 bytes; float64 is the
// library's.
#pragma once

#include "../checks.h"
#include "tile_kernels.h"

#include <c10/core/ScalarType.h>

#include <optional>
#include <variant>

namespace lltm::cuda {

struct ForwardPath {
  Arithmetic arithmetic;
  std::variant<ForwardTile, HopperTile, SplitTile> tile;
  int split;
};

struct BackwardPath {
  Arithmetic arithmetic;
  std::variant<ProductTile, SplitProductTile> tile;
  int split;
};

/// How the tile kernels are to run on the current device, or nothing: then it is the library's
/// turn.
/// rows_at_16_bytes: every row of input, old_h and both column ranges of weights starts there.
std::optional<ForwardPath> tiles_for_forward(c10::ScalarType dtype,
                                             const CellSizes<int64_t>& sizes,
                                             bool rows_at_16_bytes);
std::optional<BackwardPath> tiles_for_backward(c10::ScalarType dtype,
                                               const CellSizes<int64_t>& sizes,
                                               bool rows_at_16_bytes);

}  // namespace lltm::cuda
