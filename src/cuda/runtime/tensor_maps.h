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
  CUtensorMap old_h, input;  // boxes of rows of a tile
  // Boxes of a tile's hidden columns of each gate: of h's columns of weights, and of input's.
  CUtensorMap weights_h, weights_input;
};

struct ForwardBoxes {
  Arithmetic arithmetic;
  int chunk_k, rows, hidden;
};

/// Describes them; where there are no input features, input's are left as they are. False where one
/// cannot be described.
bool describe_forward(ForwardMaps* maps, const ForwardProblem& problem, const ForwardBoxes& boxes);

/// Whether TMA can describe a matrix of `columns` columns, one at least, of `element_size` bytes:
/// it starts, and its rows start, at multiples of 16 bytes, not too far apart, and they do not
/// overlap.
bool is_describable(const Matrix& matrix, int64_t columns, int element_size);

}  // namespace lltm::cuda
