// The right operand of a product whose rows are K, in float: boxes of a chunk of K by the columns
// of a tile. Rows may start anywhere.
#pragma once

#include "../ptx/bulk_copy.cuh"
#include "../runtime/tensor_maps.h"

#include <cuda.h>

#include <cstdint>

namespace lltm::cuda {

/// A matrix whose rows are K, as TMA reads it.
struct RowsOfK {
  bool at_vectors;  // whether all rows start at multiples of 16 bytes, so that it is one matrix
  CUtensorMap maps[kRowResidues];  // otherwise as describe_by_residue() has it
  int shifts[kRowResidues];
};

/// Where a column of a box is in shared memory.
struct ColumnOfBox {
  uint32_t first[kRowResidues], step;

  /// The offset of row fours * 4 + residue.
  __device__ __forceinline__ uint32_t offset(int fours, int residue) const {
    return first[residue] + fours * step;
  }
};

/// A box of kRows rows of K and kColumns columns. If rows do not start at multiples of 16 bytes, it
/// is copied in four boxes, each of every fourth row.
template <int kRows, int kColumns>
struct BoxOfRows {
  static constexpr int kBytes = kRows * kColumns * 4;
  // Columns are up to three further in these boxes.
  static constexpr int kResidueRows = kRows / kRowResidues, kResidueColumns = kColumns + 4;
  static constexpr int kResidueBytes = kResidueRows * kResidueColumns * 4;
  static constexpr int kMostBytes = kRowResidues * kResidueBytes;
  static_assert(kResidueBytes % 128 == 0);
  static_assert(kColumns != 32 && kResidueColumns != 32, "rows of 128 bytes would be permuted");

  static bool describe(RowsOfK* to, const Matrix& matrix, int64_t rows, int64_t columns) {
    to->at_vectors = matrix.starts_at_vectors(sizeof(float));
    BoxesOf boxes{.arithmetic = Arithmetic::kFloat32,
                  .matrix = matrix,
                  .rows = rows,
                  .columns = columns,
                  .box_rows = kRows,
                  .box_columns = kColumns};
    if (to->at_vectors) {
      return cuda::describe(to->maps, boxes);
    }
    boxes.box_rows = kResidueRows;
    boxes.box_columns = kResidueColumns;
    return describe_by_residue(to->maps, to->shifts, boxes);
  }

  /// The bytes of a box, for the barrier on which its copy completes.
  static __device__ __forceinline__ int bytes(const RowsOfK& rows) {
    return rows.at_vectors ? kBytes : kMostBytes;
  }

  static __device__ __forceinline__ void copy(
      uint32_t to, const RowsOfK& rows, int column, int k, uint32_t barrier) {
    if (rows.at_vectors) {
      copy_box_2d(to, &rows.maps[0], column, k, barrier);
      return;
    }
#pragma unroll
    for (int residue = 0; residue < kRowResidues; ++residue) {
      copy_box_2d(
          to + residue * kResidueBytes, &rows.maps[residue], column, k / kRowResidues, barrier);
    }
  }

  /// Column n of a box of a matrix that is one to TMA.
  static __device__ __forceinline__ ColumnOfBox column(int n) {
    ColumnOfBox column;
#pragma unroll
    for (int residue = 0; residue < kRowResidues; ++residue) {
      column.first[residue] = (residue * kColumns + n) * 4;
    }
    column.step = kRowResidues * kColumns * 4;
    return column;
  }
  static __device__ __forceinline__ ColumnOfBox column(const RowsOfK& rows, int n) {
    if (rows.at_vectors) {
      return column(n);
    }
    ColumnOfBox column;
#pragma unroll
    for (int residue = 0; residue < kRowResidues; ++residue) {
      column.first[residue] = residue * kResidueBytes + (rows.shifts[residue] + n) * 4;
    }
    column.step = kResidueColumns * 4;
    return column;
  }
};

}  // namespace lltm::cuda
