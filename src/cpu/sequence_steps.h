// A whole sequence with the kernels of kernels/kernels.h, on raw pointers: what is computed when.
#pragma once

#include "kernels/kernels.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace lltm::cpu {

/// The steps of a sequence, and the order in which a row runs them.
struct SequenceSteps {
  int64_t steps;
  int64_t batch;
  const int64_t* lengths;  // (batch), clamped to 0..steps here, or null for all steps
  const bool* reset;       // (steps, batch), or null for never
  bool reverse;

  int64_t length(int64_t row) const {
    return lengths ? std::clamp<int64_t>(lengths[row], 0, steps) : steps;
  }
  /// The i-th step that a row of full length runs.
  int64_t step(int64_t i) const { return reverse ? steps - 1 - i : i; }
  /// The first and last such i that any row runs, the last one excluded.
  std::pair<int64_t, int64_t> running() const {
    int64_t longest = 0;
    for (int64_t row = 0; row < batch; ++row) {
      longest = std::max(longest, length(row));
    }
    return reverse ? std::pair(steps - longest, steps) : std::pair(int64_t{0}, longest);
  }
  bool runs(int64_t step, int64_t row) const { return step < length(row); }
  bool resets(int64_t step, int64_t row) const { return reset && reset[step * batch + row]; }
  bool is_first(int64_t step, int64_t row) const {
    return reverse ? step == length(row) - 1 : step == 0;
  }
  /// The step that a row runs before `step`, which is not its first.
  int64_t before(int64_t step) const { return reverse ? step + 1 : step - 1; }
};

/// The rows of the input may have any stride. Their features may, too, but only in the forward. All
/// other arrays are contiguous.
template <typename scalar_t>
struct SequenceInput {
  const scalar_t* data;
  int64_t features;
  int64_t step_stride;
  int64_t row_stride;
  int64_t feature_stride;

  const scalar_t* row(int64_t step, int64_t row) const {
    return data + step * step_stride + row * row_stride;
  }
};

template <typename scalar_t>
struct SequenceForward {
  SequenceSteps steps;
  SequenceInput<scalar_t> input;
  int64_t state_size;
  const scalar_t* weights;  // (3*state_size, state_size + input features)
  int64_t weights_stride;
  const scalar_t* bias;  // (3*state_size), or null
  const scalar_t* h0;    // (batch, state_size), or null for zeros
  const scalar_t* c0;    // (batch, state_size), or null for zeros or exact_c0
  scalar_t* output;      // (steps, batch, state_size)
  scalar_t* h_n;         // (batch, state_size)
  scalar_t* c_n;         // (batch, state_size), or null for exact_c_n
  scalar_t* cells;       // (steps, batch, state_size), or null where not wanted
  scalar_t* gates;       // (steps, batch, 3*state_size), or null where not wanted
  // Instead of c0 and c_n if c0 is float beside 16 bits, else null.
  const accumulate_t<scalar_t>* exact_c0;
  accumulate_t<scalar_t>* exact_c_n;
};

template <typename scalar_t>
void run(const SequenceForward<scalar_t>& sequence);

template <typename scalar_t>
struct SequenceBackward {
  SequenceSteps steps;
  SequenceInput<scalar_t> input;
  int64_t state_size;
  const scalar_t* weights;  // (3*state_size, state_size + input features)
  int64_t weights_stride;
  const scalar_t* h0;                      // (batch, state_size), or null for zeros
  const scalar_t* output;                  // (steps, batch, state_size)
  const scalar_t* cells;                   // (steps, batch, state_size)
  const scalar_t* gates;                   // (steps, batch, 3*state_size)
  const scalar_t* grad_output;             // (steps, batch, state_size), or null for zero
  const scalar_t* grad_cells;              // (steps, batch, state_size), or null for zero
  const scalar_t* grad_h_n;                // (batch, state_size), or null for zero
  const accumulate_t<scalar_t>* grad_c_n;  // (batch, state_size), or null for zero
  scalar_t* d_input;                       // (steps, batch, input features), or null
  scalar_t* d_weights;                     // (3*state_size, state_size + features), or null
  scalar_t* d_bias;                        // (3*state_size), or null
  scalar_t* d_h0;                          // (batch, state_size), or null where not wanted
  accumulate_t<scalar_t>* d_c0;            // (batch, state_size), or null where not wanted
};

template <typename scalar_t>
void run(const SequenceBackward<scalar_t>& sequence);

}  // namespace lltm::cpu
