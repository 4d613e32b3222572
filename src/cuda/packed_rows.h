// Operands in rows that the kernels can read in vectors, or that TMA can describe: as they are, or
// copied.
#pragma once

#include "plan/plan.h"
#include "problem.h"
#include "runtime/device.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>

namespace lltm::cuda {

/// An uninitialized matrix whose rows start at multiples of 16 bytes.
at::Tensor rows_of_vectors(int64_t rows,
                           int64_t columns,
                           c10::ScalarType dtype,
                           const Device& device);

/// The rows of a matrix, or of the matrices of all steps, as one matrix that TMA can describe:
/// copied if necessary. They have at least one column.
at::Tensor describable_rows(const at::Tensor& tensor, const Device& device);

/// A contiguous tensor that starts at a multiple of 16 bytes: a copy if `tensor` is not one.
at::Tensor contiguous_vectors(const at::Tensor& tensor);

/// A transposed copy, which TMA can describe, of the weights of a side, whose kOfGate or kOfInput
/// is `of`, with zeros between them for the numbers that a cell saves of the other side alone.
at::Tensor transposed(const at::Tensor& weights, c10::ArrayRef<int> of, const Device& device);

/// A copy of a matrix in rows that TMA can describe.
struct PackedRows {
  bool wanted;
  Matrix& matrix;
  int64_t rows, columns;
  int64_t lead = 0;  // columns of zeros in front
};

/// Makes all wanted copies in one launch, and points their matrices to them. The returned memory
/// must live until the copies have been used; it is undefined if there are none.
at::Tensor pack(std::initializer_list<PackedRows> copies, int size, const Device& device);

/// The same of the operands of a forward that TMA cannot describe, as planned.
at::Tensor pack(ForwardProblem& problem, const ForwardPlan& plan, const Device& device);

/// The same of the operands of a backward's products that TMA cannot describe, by wgmma or
/// mma.sync.
at::Tensor pack(BackwardProblem& problem,
                Arithmetic arithmetic,
                bool by_wgmma,
                const Device& device);

}  // namespace lltm::cuda
