// What the operators of a sequence and of its backward share on CUDA.
#pragma once

#include "../dispatch/optional_tensor.h"
#include "../operators/recurrent.h"
#include "kernels/recurrence/recurrence.h"
#include "kernels/sequence/kernels.h"
#include "runtime/rows.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace lltm::cuda {

/// The stride of the bias, which may be absent.
inline int64_t bias_stride(const std::optional<at::Tensor>& bias) {
  return is_given(bias) ? bias->stride(0) : 0;
}

/// A block of weights as the kernels for all steps read it.
template <typename scalar_t>
RecurrentWeights<scalar_t> recurrent_weights(const at::Tensor& weights) {
  return {weights.const_data_ptr<scalar_t>(), {weights.stride(0), weights.stride(1)}};
}

/// In which order steps are run.
struct StepOrder {
  int64_t steps;
  bool reverse;

  /// The time of the step that is run after k others.
  int64_t time_of(int64_t k) const { return reverse ? steps - 1 - k : k; }
  int64_t next_time(int64_t k) const { return k + 1 < steps ? time_of(k + 1) : kNever; }
  /// The least time of `count` steps, of which k is the first that is run.
  int64_t first_time(int64_t k, int64_t count) const { return reverse ? steps - k - count : k; }
};

/// The address of (t, row) in a contiguous tensor of steps, or null if the tensor is empty.
inline void* address_of(const at::Tensor& steps, int64_t t, int64_t row) {
  return steps.size(0) > 0 ? static_cast<char*>(steps.mutable_data_ptr()) +
                                 (t * steps.size(1) + row) * steps.size(2) * steps.element_size()
                           : nullptr;
}

/// The lengths, in int64, and resets of the rows from first_row on.
inline RowsOfSequence rows_of_sequence(const std::optional<at::Tensor>& lengths,
                                       const std::optional<at::Tensor>& reset,
                                       int64_t first_row) {
  RowsOfSequence rows{};
  if (is_given(lengths)) {
    rows.lengths_stride = lengths->stride(0);
    rows.lengths = lengths->const_data_ptr<int64_t>() + first_row * rows.lengths_stride;
  }
  if (is_given(reset)) {
    rows.reset_strides[0] = reset->stride(0);
    rows.reset_strides[1] = reset->stride(1);
    rows.reset = reset->const_data_ptr<bool>() + first_row * rows.reset_strides[1];
  }
  return rows;
}
inline RowsOfSequence rows_of_sequence(const RecurrentArguments& arguments) {
  return rows_of_sequence(arguments.lengths, arguments.reset, /*first_row=*/0);
}

/// The state that `count` rows from first_row on start from, without the places it is written to.
template <typename scalar_t>
SequenceStartParams<scalar_t> start_of_rows(const RecurrentArguments& arguments,
                                            const StepOrder& order,
                                            int64_t first_row,
                                            int64_t count) {
  const auto state_of = [&]<typename T>(const std::optional<at::Tensor>& initial, T) {
    return is_given(initial) && initial->scalar_type() == c10::CppTypeToScalarType<T>::value
               ? steps_of<T>(initial->narrow(0, first_row, count))
               : Steps<T>{};
  };
  SequenceStartParams<scalar_t> start{};
  start.rows = count;
  start.state_size = arguments.weight_hh.size(1);
  start.steps = order.steps;
  start.reverse = order.reverse;
  start.rows_of_sequence = rows_of_sequence(arguments.lengths, arguments.reset, first_row);
  start.h0 = state_of(arguments.h0, scalar_t{});
  start.c0 = state_of(arguments.c0, scalar_t{});
  start.c0_float = state_of(arguments.c0, float{});
  return start;
}

/// The h or c that every step started from: `initial`, or what is in `results` of the step that was
/// run before.
template <typename scalar_t>
OldStates<scalar_t> old_states_of(const RecurrentArguments& arguments,
                                  const at::Tensor& results,
                                  const std::optional<at::Tensor>& initial,
                                  bool reverse) {
  return {.steps = results.size(0),
          .rows = results.size(1),
          .reverse = reverse,
          .rows_of_sequence = rows_of_sequence(arguments),
          .results = steps_of<scalar_t>(results),
          .initial = steps_of<scalar_t>(initial)};
}

}  // namespace lltm::cuda
