// Describing matrices to TMA, the unit that copies boxes of them to shared memory (sm_90).
#pragma once

#include "tile_kernels.h"

#include <cuda.h>

#include <cstdint>

namespace lltm::cuda {

/// How a box lies in shared memory: its rows one behind the other, or, of 128 bytes each, with
/// their pieces of 16 bytes swapped among each other (piece p of row r is at p ^ r % 8).
enum class BoxLayout { kRows, kSwizzled };

/// Describes a matrix for boxes of box_columns x box_rows, or three of them, one a gate, `rows`
/// rows apart, whose boxes have rows of all three. Matrices start at, and rows are, multiples of 16
/// bytes. False where it cannot be described.
bool describe_rows(CUtensorMap* map,
                   Arithmetic arithmetic,
                   const void* data,
                   int64_t columns,
                   int64_t rows,
                   int64_t gates,
                   int64_t stride,
                   int box_columns,
                   int box_rows,
                   BoxLayout layout = BoxLayout::kSwizzled);

/// The operands of the forward's product.
struct ForwardMaps {
  CUtensorMap old_h, input;              // boxes of rows of a tile
  CUtensorMap weights_h, weights_input;  // boxes of a tile's hidden columns of each gate
};

/// Describes them for boxes of chunk_k columns. False where one cannot be described.
bool describe_forward(ForwardMaps* maps,
                      Arithmetic arithmetic,
                      const FusedForwardParams& params,
                      int chunk_k,
                      int rows,
                      int hidden);

}  // namespace lltm::cuda
