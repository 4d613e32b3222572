// Writing a finished tile to global memory.
#pragma once

#include "../tile/vectors.cuh"

namespace lltm::cuda {

// Writes rows [0, rows) x columns [0, columns) of a tile. read(values, row, column) returns four
// neighbors of a row. `fours` says whether four may be written at once.
template <int kThreads, int kTileN, typename Element, typename Read>
LLTM_DEVICE void write_tile(
    Element* to, int64_t stride, int rows, int columns, bool fours, const Read& read) {
#pragma unroll 1
  for (int piece = static_cast<int>(threadIdx.x); piece < rows * (kTileN / 4); piece += kThreads) {
    const int row = piece / (kTileN / 4), column = piece % (kTileN / 4) * 4;
    float values[4];
    read(values, row, column);
    Vector<Element, 4> four;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      four.values[i] = static_cast<Element>(values[i]);
    }
    Element* const target = to + row * stride + column;
    if (fours && column + 4 <= columns) {
      write_global_vector(target, four);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (column + i < columns) {
          target[i] = four.values[i];
        }
      }
    }
  }
}

}  // namespace lltm::cuda
