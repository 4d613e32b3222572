// What lltm::sequence and lltm::sequence_backward share on CUDA.
#pragma once

#include "../checks.h"
#include "../products.h"
#include "../sequence_outputs.h"
#include "kernels/sequence/kernels.h"
#include "runtime/device.h"
#include "runtime/rows.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cstdint>
#include <optional>

namespace lltm::cuda {

/// The address of (t, row) in a contiguous tensor of steps, or null if the tensor is empty.
inline void* kept_at(const at::Tensor& kept, int64_t t, int64_t row) {
  return kept.size(0) > 0 ? static_cast<char*>(kept.mutable_data_ptr()) +
                                (t * kept.size(1) + row) * kept.size(2) * kept.element_size()
                          : nullptr;
}

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

/// What the first steps of the rows [first, first + count) start from, without the places to write
/// it to.
template <typename scalar_t>
SequenceStartParams<scalar_t> start_of_sequence(const SequenceArguments& arguments,
                                                int64_t state_size,
                                                int64_t first,
                                                int64_t count,
                                                bool reverse) {
  const auto state_of = [&]<typename T>(const std::optional<at::Tensor>& initial, T) {
    return is_given(initial) && initial->scalar_type() == c10::CppTypeToScalarType<T>::value
               ? steps_of<T>(initial->narrow(0, first, count))
               : Steps<T>{};
  };
  return {
      .rows = count,
      .state_size = state_size,
      .steps = arguments.input.size(0),
      .reverse = reverse,
      .rows_of_sequence = rows_of_sequence(arguments, first),
      .h0 = state_of(arguments.h0, scalar_t{}),
      .c0 = state_of(arguments.c0, scalar_t{}),
      .c0_float = state_of(arguments.c0, float{}),
      .h = {},
      .h_stride = state_size,
      .cell = nullptr,
      .h_n = nullptr,
  };
}

}  // namespace lltm::cuda
