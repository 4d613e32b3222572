// Describing matrices to TMA, the unit that copies boxes of them to shared memory (sm_90).
#pragma once

#include "../problem.h"

#include <cuda.h>

#include <cstdint>

namespace lltm::cuda {

/// How a box lies in shared memory: its rows one behind the other, or, of 128 bytes each, with
/// their pieces of 16 bytes swapped among each other (piece p of row r is at p ^ r % 8).
enum class BoxLayout { kRows, kSwizzled };

/// A matrix of rows x columns elements in boxes of box_rows x box_columns; or `gates` of them, each
/// `rows` rows behind the one before, whose boxes have rows of all.
struct BoxesOf {
  Arithmetic arithmetic;
  Matrix matrix;  // starts, and its rows start, at multiples of 16 bytes
  int64_t rows, columns;
  int64_t gates = 1;
  int box_rows, box_columns;
  BoxLayout layout = BoxLayout::kSwizzled;

  bool operator==(const BoxesOf&) const = default;
};

/// Describes them to TMA. False where they cannot be described.
bool describe(CUtensorMap* map, const BoxesOf& boxes);

/// The operands of the forward's product.
struct ForwardMaps {
  CUtensorMap old_h, input;              // boxes of rows of a tile
  CUtensorMap weights_h, weights_input;  // boxes of a tile's hidden columns of each gate
};

/// Describes them for boxes of chunk_k columns. False where one cannot be described.
bool describe_forward(ForwardMaps* maps,
                      Arithmetic arithmetic,
                      const ForwardProblem& problem,
                      int chunk_k,
                      int rows,
                      int hidden);

}  // namespace lltm::cuda
