// What lltm::sequence and lltm::sequence_backward share on CUDA.
#pragma once

#include "../cell/products.h"
#include "../dispatch/optional_tensor.h"
#include "../operators/checks.h"
#include "kernels/recurrence/recurrence.h"
#include "kernels/sequence/kernels.h"
#include "runtime/device.h"
#include "runtime/rows.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>

#include <cstdint>

namespace lltm::cuda {

/// out = a @ b, in out's dtype. For 16-bit a and b it may be float32, and nothing is rounded to 16
/// bits.
inline void product_out(at::Tensor out, const at::Tensor& a, const at::Tensor& b) {
  if (a.size(1) == 0) {
    out.zero_();
  } else if (out.scalar_type() == a.scalar_type()) {
    at::mm_out(out, a, b);
  } else {
    at::mm_out(out, a, b, out.scalar_type());
  }
}

/// An uninitialized matrix whose rows start at multiples of 16 bytes.
inline at::Tensor rows_of_vectors(int64_t rows,
                                  int64_t columns,
                                  c10::ScalarType dtype,
                                  const Device& device) {
  const auto size = static_cast<int>(c10::elementSize(dtype));
  return device.empty({rows, whole_vectors(columns, size)}, dtype).narrow(1, 0, columns);
}

/// A matrix, copied if necessary so that TMA can describe it.
inline at::Tensor in_rows_of_vectors(const at::Tensor& matrix, const Device& device) {
  return is_describable(matrix)
             ? matrix
             : rows_of_vectors(matrix.size(0), matrix.size(1), matrix.scalar_type(), device)
                   .copy_(matrix);
}

/// The stride of the bias, which may be absent.
inline int64_t bias_stride(const SequenceArguments& arguments) {
  return is_given(arguments.bias) ? arguments.bias->stride(0) : 0;
}

/// The columns of weights that belong to h, or to the input, as the kernels for all steps read
/// them.
template <typename scalar_t>
RecurrentWeights<scalar_t> recurrent_weights(const at::Tensor& weights) {
  return {weights.const_data_ptr<scalar_t>(), {weights.stride(0), weights.stride(1)}};
}

/// Calls run<scalar_t>() for a dtype that has kernels for all steps.
template <typename Run>
void with_scalar(at::ScalarType dtype, const Run& run) {
  switch (dtype) {
    case at::kHalf:
      return run.template operator()<c10::Half>();
    case at::kBFloat16:
      return run.template operator()<c10::BFloat16>();
    default:
      return run.template operator()<float>();
  }
}

/// The lengths and resets of the rows from first_row on.
inline RowsOfSequence rows_of_sequence(const SequenceArguments& arguments, int64_t first_row) {
  RowsOfSequence rows{};
  if (is_given(arguments.lengths)) {
    const at::Tensor& lengths = *arguments.lengths;
    rows.lengths_stride = lengths.stride(0);
    rows.lengths = lengths.const_data_ptr<int64_t>() + first_row * rows.lengths_stride;
  }
  if (is_given(arguments.reset)) {
    const at::Tensor& reset = *arguments.reset;
    rows.reset_strides[0] = reset.stride(0);
    rows.reset_strides[1] = reset.stride(1);
    rows.reset = reset.const_data_ptr<bool>() + first_row * rows.reset_strides[1];
  }
  return rows;
}

template <typename scalar_t>
OldStates<scalar_t> old_states_of(const SequenceBackwardArguments& arguments, bool reverse) {
  return {.steps = arguments.output.size(0),
          .rows = arguments.output.size(1),
          .reverse = reverse,
          .rows_of_sequence = rows_of_sequence(arguments.sequence(), /*first_row=*/0),
          .output = steps_of<scalar_t>(arguments.output),
          .h0 = steps_of<scalar_t>(arguments.h0)};
}

}  // namespace lltm::cuda
