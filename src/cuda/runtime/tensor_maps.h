// Tensor maps: descriptions of matrices for TMA, the unit that copies boxes of them to shared
// memory (sm_90).
#pragma once

#include "../problem.h"

#include <cuda.h>

#include <cstdint>

namespace lltm::cuda {

/// A matrix of rows x columns elements in boxes of box_rows x box_columns; or `gates` such
/// matrices, `rows` rows apart, whose boxes have box_rows rows of each. Boxes are in shared memory
/// row after row; in rows of 128 bytes, the 16-byte pieces are permuted (piece p of row r is at p ^
/// r % 8).
struct BoxesOf {
  Arithmetic arithmetic;
  Matrix matrix;  // all rows start at multiples of 16 bytes
  int64_t rows, columns;
  int box_rows, box_columns;
  int64_t gates = 1;

  bool operator==(const BoxesOf&) const = default;
};

/// Creates the tensor map, unless the matrix has no data or no columns, in which case nothing reads
/// the map. Returns false if TMA cannot describe the boxes.
bool describe(CUtensorMap* map, const BoxesOf& boxes);

/// The maps of the operands of the forward's product.
struct ForwardMaps {
  CUtensorMap old_h, input;  // boxes have a tile's rows
  // Boxes have a tile's hidden columns of each gate, in the weights' columns of h and of input.
  CUtensorMap weights_h, weights_input;
};

/// Creates the maps, of boxes with the rows and the hidden columns of a tile; those of input are
/// left as they are if there are no input features. Returns false if TMA cannot describe one of the
/// matrices.
bool describe_forward(ForwardMaps* maps,
                      const ForwardProblem& problem,
                      Arithmetic arithmetic,
                      int rows,
                      int hidden,
                      int gates);

}  // namespace lltm::cuda
