// A whole sequence with the kernels of kernels/kernels.h, on raw pointers: what is computed when.
#pragma once

#include "kernels/kernels.h"
#include "schedule.h"

#include <cstdint>

namespace lltm::cpu {

/// A (steps, batch, columns) array whose rows may have any stride, or null.
template <typename scalar_t>
struct RowsOfSteps {
  const scalar_t* data;
  int64_t step_stride;
  int64_t row_stride;

  const scalar_t* at(int64_t step, int64_t row) const {
    return data ? data + step * step_stride + row * row_stride : nullptr;
  }
};

/// The features may have any stride, too, but only in the forward.
template <typename scalar_t>
struct SequenceInput {
  RowsOfSteps<scalar_t> rows;
  int64_t features;
  int64_t feature_stride;
};

/// The two blocks of columns of weights, (3*state_size, state_size) and (3*state_size, features).
template <typename scalar_t>
struct Weights {
  const scalar_t* h;
  const scalar_t* input;
  int64_t stride;  // between rows of either
};

/// Plain pointers are to contiguous arrays.
template <typename scalar_t>
struct SequenceForward {
  Steps steps;
  SequenceInput<scalar_t> input;
  int64_t state_size;
  Weights<scalar_t> weights;
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
  Steps steps;
  SequenceInput<scalar_t> input;
  int64_t state_size;
  Weights<scalar_t> weights;
  const scalar_t* h0;                      // (batch, state_size), or null for zeros
  const scalar_t* output;                  // (steps, batch, state_size)
  const scalar_t* cells;                   // (steps, batch, state_size)
  const scalar_t* gates;                   // (steps, batch, 3*state_size)
  RowsOfSteps<scalar_t> grad_output;       // (steps, batch, state_size), or null for zero
  RowsOfSteps<scalar_t> grad_cells;        // (steps, batch, state_size), or null for zero
  const scalar_t* grad_h_n;                // (batch, state_size), or null for zero
  const accumulate_t<scalar_t>* grad_c_n;  // (batch, state_size), or null for zero
  // Neither d_input nor d_gates is written beyond a row's length.
  scalar_t* d_input;             // (steps, batch, input features), or null
  scalar_t* d_weights;           // (3*state_size, state_size + features), or null
  scalar_t* d_bias;              // (3*state_size), or null
  scalar_t* d_h0;                // (batch, state_size), or null where not wanted
  accumulate_t<scalar_t>* d_c0;  // (batch, state_size), or null where not wanted
  scalar_t* d_gates;             // (steps, batch, 3*state_size), or null
};

template <typename scalar_t>
void run(const SequenceBackward<scalar_t>& sequence);

}  // namespace lltm::cpu
