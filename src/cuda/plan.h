// Which kernels compute a cell, for which sizes: the one place where it is decided.
//
// The environment variable LLTM_CUDA_PATH forces a path, for a test or a measurement: `few_rows`
// (forward and backward in one launch each, without tiles), `hopper` (our own products by sm_90a's
// instructions), `tiles` (our own by those of sm_80) or `library` (products by ATen, everything
// pointwise in a kernel of ours). Unset, empty or `auto`: the measured choice of plan.cpp. Another
// value is an error. What a path cannot compute tiles does: few_rows is for batches of up to 8, and
// has no forward in 16 bits; it and hopper need rows that start at 16 bytes; float64 is the
// library's.
#pragma once

#include "../checks.h"
#include "kernels/backward_kernels.h"
#include "kernels/forward_kernels.h"
#include "problem.h"
#include "runtime/rows.h"

#include <c10/core/ScalarType.h>
#include <cuda_runtime_api.h>

#include <optional>
#include <variant>

namespace lltm::cuda {

/// How many columns of the state a block of the forward for few rows takes.
struct FewRowsColumns {
  int count;
};

struct ForwardPath {
  Arithmetic arithmetic;
  std::variant<ForwardTile, WgmmaTile, ThreeTf32Tile, FewRowsColumns> tile;
  int split;
};

/// Hopper's products of the backward, by as many pairs of blocks.
struct HopperBackwardPairs {
  int count;
};

/// The same in TF32.
struct Tf32BackwardPairs {
  Tf32BatchTile tile;
  int count;
};

/// Hopper's products in 16 bits, in small tiles.
struct HopperSmallTiles {};

/// The backward for few rows in one launch, whose strips are all alike.
struct FewRowsStrips {};

struct BackwardPath {
  Arithmetic arithmetic;
  std::variant<FewRowsStrips,
               HopperBackwardPairs,
               HopperSmallTiles,
               ProductTile,
               SplitProductTile,
               Tf32BackwardPairs>
      tile;
  int split;
};

/// How the tile kernels are to run on `device`, the current one, or nothing: then it is the
/// library's turn.
/// rows_at_16_bytes: every row of input, old_h and both column ranges of weights starts there, and
/// for the backward, of the gradients too.
std::optional<ForwardPath> plan_forward(const cudaDeviceProp& device,
                                        c10::ScalarType dtype,
                                        const CellSizes<int64_t>& sizes,
                                        bool rows_at_16_bytes);
std::optional<BackwardPath> plan_backward(const cudaDeviceProp& device,
                                          c10::ScalarType dtype,
                                          const CellSizes<int64_t>& sizes,
                                          bool rows_at_16_bytes);

}  // namespace lltm::cuda
