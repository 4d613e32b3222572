// What lltm::sequence and lltm::sequence_backward share on CUDA.
#pragma once

#include "../checks.h"
#include "../optional_tensor.h"
#include "../products.h"
#include "kernels/sequence/kernels.h"
#include "runtime/rows.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

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

/// z_x of some steps, with the bias: the product of input, of shape (steps, rows, input_features),
/// in z_x's dtype.
inline void input_product_out(const at::Tensor& z_x,
                              const at::Tensor& input,
                              const SequenceArguments& arguments) {
  at::Tensor out = z_x.flatten(0, 1);
  const at::Tensor rows = input.reshape({out.size(0), input.size(2)});
  const at::Tensor weights = input_columns(arguments.weights).t();
  // Zeros in place of an absent bias: another product would round differently.
  at::addmm_out(
      out,
      is_given(arguments.bias) ? *arguments.bias : at::zeros({out.size(1)}, out.options()),
      rows,
      weights);
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
