// The CUDA kernels of the cell, on raw pointers. They know no Tensor.
//
// Matrices are row-major and contiguous; sizes and strides are in elements and 64-bit. scalar_t is
// double, float, c10::Half or c10::BFloat16; 16-bit types are computed in float. Every launch
// function enqueues on `stream` of the current device, needs at least one element, and leaves it to
// its caller to check for launch errors.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lltm::cuda {

template <typename scalar_t>
struct ForwardParams {
  int64_t batch;
  int64_t state_size;
  const scalar_t* gates;     // (batch, 3*state_size), pre-activations
  const scalar_t* old_cell;  // (batch, state_size)
  scalar_t* new_h;           // (batch, state_size)
  scalar_t* new_cell;        // (batch, state_size)
};

template <typename scalar_t>
struct BackwardParams {
  int64_t batch;
  int64_t state_size;
  const scalar_t* grad_h;     // (batch, state_size), or null for zero
  const scalar_t* grad_cell;  // (batch, state_size), or null for zero
  const scalar_t* gates;      // (batch, 3*state_size), pre-activations
  const scalar_t* new_cell;   // (batch, state_size)
  scalar_t* d_gates;          // (batch, 3*state_size), or null where not wanted
  scalar_t* d_old_cell;       // (batch, state_size), or null where not wanted
};

template <typename scalar_t>
void launch_forward(const ForwardParams<scalar_t>& params, cudaStream_t stream);

template <typename scalar_t>
void launch_backward(const BackwardParams<scalar_t>& params, cudaStream_t stream);

}  // namespace lltm::cuda
