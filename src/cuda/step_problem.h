// One step of a sequence, on raw pointers: the cell's forward with a state that is carried from
// step to step. Only what is kept is written.
#pragma once

#include "problem.h"

#include <cstdint>
#include <limits>
#include <type_traits>

namespace lltm::cuda {

/// The sizes and the operands of a sequence's steps. Weights and input that not every kernel can
/// read in vectors are copied.
struct StepOperands {
  // The most bytes of a copy of the weights.
  static constexpr int64_t kWeightsBytes = 40 << 20;

  int size = 0;       // of an element
  int64_t gates = 0;  // of all elements of a row
  int64_t input_features = 0, state_size = 0;
  bool copies_weights = false, copies_weights_input = false, copies_input = false;

  bool operator==(const StepOperands&) const = default;
  bool whole_state() const { return state_size * size % 16 == 0; }
  int64_t h_stride() const { return packed_stride(state_size, size); }
  int64_t input_stride() const { return packed_stride(input_features, size); }
  int64_t weights_bytes() const {
    return gates * size *
           ((copies_weights ? h_stride() : 0) + (copies_weights_input ? input_stride() : 0));
  }

  /// Decides which operands are copied: those that TMA cannot describe, and weights whose rows do
  /// not end with a vector.
  void choose_copies(bool describes_weights, bool describes_weights_input, bool describes_input) {
    copies_weights = !describes_weights || !whole_state();
    copies_weights_input = input_features > 0 && !describes_weights_input;
    copies_input = input_features > 0 && !describes_input;
  }
  /// The problem of a step of `rows` rows. Copies and buffers, which are aligned, have null data.
  ForwardProblem problem(int64_t rows,
                         const Matrix& input,
                         const Matrix& weights,
                         const Matrix& weights_input) const {
    ForwardProblem step{};
    step.batch = rows;
    step.input_features = input_features;
    step.state_size = state_size;
    step.input = copies_input ? Matrix{nullptr, input_stride()} : input;
    step.weights = copies_weights ? Matrix{nullptr, h_stride()} : weights;
    step.weights_input = input_features == 0    ? Matrix{}
                         : copies_weights_input ? Matrix{nullptr, input_stride()}
                                                : weights_input;
    step.old_h = {nullptr, h_stride()};
    return step;
  }
};

/// Stands for the time before the first step and after the last.
constexpr int64_t kNoTime = -1;

/// Later than every step.
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

/// Which rows of the batch run at which time, and which are reset then.
struct RowsOfSequence {
  const int64_t* lengths;  // per row, or null: all rows run at all times
  int64_t lengths_stride;
  const bool* reset;  // (steps, rows), or null: never
  int64_t reset_strides[2];

  LLTM_HOST_DEVICE int64_t length_of(int64_t row) const {
    return lengths == nullptr ? kNever : lengths[row * lengths_stride];
  }
  LLTM_HOST_DEVICE bool runs(int64_t row, int64_t t) const {
    return lengths == nullptr || t < lengths[row * lengths_stride];
  }
  LLTM_HOST_DEVICE bool is_reset(int64_t row, int64_t t) const {
    return reset != nullptr && reset[t * reset_strides[0] + row * reset_strides[1]];
  }
};

/// A row with any stride between its elements; null data for zeros.
template <typename scalar_t>
struct StridedRow {
  const scalar_t* data;
  int64_t stride;
};

/// The h or c that every step started from: that of h0 or c0 at a row's first step, zeros if the
/// row is reset, otherwise the result of the step that was run before. Zeros beyond the length.
template <typename scalar_t>
struct OldStates {
  int64_t steps, rows;
  bool reverse;
  RowsOfSequence rows_of_sequence;
  Steps<scalar_t> results;
  Steps<scalar_t> initial;  // null data for zeros; its stride of time is unused

  LLTM_HOST_DEVICE StridedRow<scalar_t> at(int64_t t, int64_t row) const {
    // Both are read at once.
    const int64_t length = rows_of_sequence.length_of(row);
    const bool is_reset = rows_of_sequence.is_reset(row, t);
    if (t >= length || is_reset) {
      return {};
    }
    const int64_t before = reverse ? t + 1 : t - 1;
    if (before >= 0 && before < steps && before < length) {
      return {&results.at(before, row, 0), results.strides[2]};
    }
    return initial.data == nullptr
               ? StridedRow<scalar_t>{}
               : StridedRow<scalar_t>{&initial.at(0, row, 0), initial.strides[2]};
  }
};

/// A step of a sequence. A row that runs at t writes the state that its step at next_t starts from,
/// which is zeros if that step is reset; at its last step it writes h_n instead. A row that does
/// not run at t writes zeros to new_h, new_cell and gates, and leaves everything else untouched.
///
/// new_h is this step's part of output, new_cell and gates are null if not kept. old_cell has the
/// accumulation type. Its rows and those of `added` are aligned so that four columns can be read at
/// once if state_size is a multiple of four.
struct StepProblem : ForwardProblem {
  // What is added to the products, in place of `bias`: that bias for every row, with a stride of 0,
  // or null; or z_x of this step, with its bias, and then there are no input_features. A cell that
  // does not add its sides has all kSaved biases in `bias`, which is unused otherwise.
  Matrix added;
  int64_t t, next_t;  // next_t is kNever at the last step
  RowsOfSequence rows;
  Matrix next_h;    // of the operands' type; null data if the next step reads new_h
  void* next_cell;  // as old_cell, contiguous, may be the same; null if it is new_cell
  void* h_n;        // (batch, state_size), contiguous
  // Whether the previous kernel on the stream is another step of the same sequence, so that input
  // and weights are available before it is done.
  bool follows_a_step;
};

template <typename Problem>
constexpr bool kOfSequence = std::is_same_v<Problem, StepProblem>;

/// The sums of an element in a kernel: in a step as many as gates, since a cell that does not add
/// its sides has z_x there or is one of cell::Combined, and otherwise all that the cell saves.
template <typename Problem, typename Cell>
constexpr int kSumsOf = kOfSequence<Problem> ? Cell::kGates : Cell::kSaved;

LLTM_HOST_DEVICE bool loads_early(const ForwardProblem&) {
  return false;
}
LLTM_HOST_DEVICE bool loads_early(const StepProblem& problem) {
  return problem.follows_a_step;
}

}  // namespace lltm::cuda
