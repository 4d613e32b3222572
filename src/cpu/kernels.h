// The CPU kernels: everything pointwise of the cell, on raw pointers. They know no Tensor.
//
// Matrices are row-major and contiguous; strides and sizes are in elements. scalar_t is double,
// float, c10::Half or c10::BFloat16; 16-bit types are computed in float. A kernel works on the rows
// [row_begin, row_end), so that its caller may spread the batch over threads.
#pragma once

#include <cstdint>

namespace lltm::cpu {

template <typename scalar_t>
struct ForwardParams {
  int64_t state_size;
  const scalar_t* gates;     // (batch, 3*state_size), pre-activations
  const scalar_t* old_cell;  // (batch, state_size)
  scalar_t* new_h;           // (batch, state_size)
  scalar_t* new_cell;        // (batch, state_size)
};

template <typename scalar_t>
struct BackwardParams {
  int64_t state_size;
  const scalar_t* grad_h;     // (batch, state_size), or null for zero
  const scalar_t* grad_cell;  // (batch, state_size), or null for zero
  const scalar_t* gates;      // (batch, 3*state_size), pre-activations
  const scalar_t* new_cell;   // (batch, state_size)
  scalar_t* d_gates;          // (batch, 3*state_size), or null where not wanted
  scalar_t* d_old_cell;       // (batch, state_size), or null where not wanted
};

template <typename scalar_t>
void forward_rows(const ForwardParams<scalar_t>& params, int64_t row_begin, int64_t row_end);

template <typename scalar_t>
void backward_rows(const BackwardParams<scalar_t>& params, int64_t row_begin, int64_t row_end);

}  // namespace lltm::cpu
