// One step of a sequence, on raw pointers: the cell's forward with a state that is carried from
// step to step, and with nothing written that nobody keeps.
#pragma once

#include "problem.h"

#include <cstdint>
#include <limits>

namespace lltm::cuda {

/// A step of rows that all run, begin and end together, whose state_size is a multiple of 16 bytes:
/// the next step reads h in output.
struct StepProblem {
  /// new_h is output's of this step. old_cell is float, whatever the type, and its rows, like bias,
  /// are such that four columns can be read at once where state_size is a multiple of four, and two
  /// where it is even. new_cell and gates are null where not kept.
  ForwardProblem cell;
  float*
      next_cell;  // (batch, state_size), contiguous, may be old_cell; null where new_cell is that
  void* h_n;      // (batch, state_size), contiguous, null but at the last step
  // Whether the kernel before this one on the stream is another step of the same sequence, so that
  // input and weights are there before it is done.
  bool follows_a_step;
};

/// Later than every step.
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

/// A step of any rows, of any state_size. A row whose step at t is not its last leaves what its
/// step at next_t begins with, zeros where that is reset; its last step leaves h_n. A row that does
/// not run at t leaves zeros in output, cells and gates, and everything else alone.
struct StepOfRowsProblem : StepProblem {
  int64_t t, next_t;       // next_t is kNever at the last step
  const int64_t* lengths;  // of the rows, or null: all run at all times
  int64_t lengths_stride;
  const bool* next_reset;  // of the rows, whether they begin anew at next_t, or null: none does
  int64_t next_reset_stride;
  Matrix next_h;  // of the operands' type
};

/// What a kernel of the forward needs beside its epilogue.
LLTM_HOST_DEVICE const ForwardProblem& cell_of(const ForwardProblem& problem) {
  return problem;
}
LLTM_HOST_DEVICE const ForwardProblem& cell_of(const StepProblem& problem) {
  return problem.cell;
}

template <typename Problem>
constexpr bool kOfSequence = false;
template <>
inline constexpr bool kOfSequence<StepProblem> = true;
template <>
inline constexpr bool kOfSequence<StepOfRowsProblem> = true;

LLTM_HOST_DEVICE bool loads_early(const ForwardProblem&) {
  return false;
}
LLTM_HOST_DEVICE bool loads_early(const StepProblem& problem) {
  return problem.follows_a_step;
}

}  // namespace lltm::cuda
