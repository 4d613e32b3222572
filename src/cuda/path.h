// Which kernels compute a cell, for which sizes: the one place where it is decided.
//
// The environment variable LLTM_CUDA_PATH forces a path, for a test or a measurement: `tiles` (our
// own products on the tensor cores) or `library` (products by ATen, everything pointwise in a
// kernel of ours). Unset, empty or `auto`: the measured choice of path.cpp. Another value is an
// error. float64 always takes `library`.
#pragma once

#include "../checks.h"
#include "tile_kernels.h"

#include <c10/core/ScalarType.h>

#include <optional>

namespace lltm::cuda {

struct ForwardPath {
  Arithmetic arithmetic;
  ForwardTile tile;
  int split;
};

struct BackwardPath {
  Arithmetic arithmetic;
  ProductTile tile;
  int split;
};

/// How the tile kernels are to run on the current device, or nothing: then it is the library's
/// turn.
std::optional<ForwardPath> tiles_for_forward(c10::ScalarType dtype,
                                             const CellSizes<int64_t>& sizes);
std::optional<BackwardPath> tiles_for_backward(c10::ScalarType dtype,
                                               const CellSizes<int64_t>& sizes);

}  // namespace lltm::cuda
