// What lltm::sequence and lltm::sequence_backward share on CUDA.
#pragma once

#include "../checks.h"
#include "kernels/sequence_kernels.h"
#include "runtime/device.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cstdint>
#include <optional>

namespace lltm::cuda {

struct SequenceOutputs {
  at::Tensor output, h_n, c_n, cells, gates;
};

/// One kernel a step. False, with nothing done, where that is for the library to compute: float64,
/// what is older than sm_80, no steps, and what measures faster so.
bool run_sequence_by_steps(const SequenceOutputs& outputs,
                           const SequenceArguments& arguments,
                           const Device& device,
                           bool reverse);

/// out = a @ b, in out's dtype: for 16-bit a and b float32, not rounded on the way.
inline void product_out(at::Tensor out, const at::Tensor& a, const at::Tensor& b) {
  if (a.size(1) == 0) {
    out.zero_();
  } else if (out.scalar_type() == a.scalar_type()) {
    at::mm_out(out, a, b);
  } else {
    at::mm_out(out, a, b, out.scalar_type());
  }
}

inline at::Tensor h_columns(const at::Tensor& weights) {
  return weights.narrow(1, 0, weights.size(0) / 3);
}
inline at::Tensor input_columns(const at::Tensor& weights) {
  const int64_t state_size = weights.size(0) / 3;
  return weights.narrow(1, state_size, weights.size(1) - state_size);
}

/// Some rows' lengths and resets, beginning with first_row.
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
Steps<scalar_t> steps_of(const std::optional<at::Tensor>& tensor) {
  if (!is_given(tensor)) {
    return {};
  }
  const bool has_time = tensor->dim() == 3;
  return {tensor->const_data_ptr<scalar_t>(),
          {has_time ? tensor->stride(0) : 0, tensor->stride(-2), tensor->stride(-1)}};
}

}  // namespace lltm::cuda
