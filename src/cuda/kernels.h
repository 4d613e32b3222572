// The CUDA kernels of the cell, on raw pointers. They know no Tensor.
//
// Matrices are row-major and, but for those with strides of their own, contiguous; sizes and
// strides are in elements and 64-bit. scalar_t is double, float, c10::Half or c10::BFloat16; 16-bit
// types are computed in float. Every launch function enqueues on `stream` of the current device,
// needs at least one element, and returns the error of its launch.
#pragma once

#include "../cell.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

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

/// [old_h | input] transposed, and rounded to TF32: a row for each column, in the order of
/// transposed_inputs.cuh, and zeros up to a multiple of 16 of them.
struct TransposedInputs {
  int64_t batch;
  int64_t input_features;
  int64_t state_size;
  const float* input;  // (batch, input_features)
  int64_t input_stride;
  const float* old_h;  // (batch, state_size)
  int64_t old_h_stride;
  float* transposed;  // (columns(), row_stride()), at a multiple of 16 bytes, or null: not wanted

  LLTM_HOST_DEVICE int64_t columns() const { return (state_size + input_features + 15) / 16 * 16; }
  LLTM_HOST_DEVICE int64_t row_stride() const { return (batch + 3) / 4 * 4; }
};

template <typename scalar_t>
struct BackwardParams {
  int64_t batch;
  int64_t state_size;
  const scalar_t* grad_h;  // (batch, state_size), or null for zero
  int64_t grad_h_strides[2];
  const scalar_t* grad_cell;  // (batch, state_size), or null for zero
  int64_t grad_cell_strides[2];
  const scalar_t* gates;     // (batch, 3*state_size), pre-activations
  const scalar_t* new_cell;  // (batch, state_size)
  scalar_t* d_gates;         // (batch, 3*state_size), or null where not wanted
  scalar_t* d_bias;          // (3*state_size), or null where not wanted
  scalar_t* d_old_cell;      // (batch, state_size), or null where not wanted
  // Where d_bias is wanted: backward_workspace elements of accumulate_t<scalar_t>, or null for
  // none.
  void* workspace;
  // Whether the next kernel may begin before this one is done.
  bool starts_next;
  // For float and products in TF32: whether d_gates are rounded to it, and what is formed besides.
  bool rounds_to_tf32;
  TransposedInputs inputs;
};

/// double for double, float for the others.
template <typename scalar_t>
using accumulate_t = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;

template <typename scalar_t>
cudaError_t launch_forward(const ForwardParams<scalar_t>& params, cudaStream_t stream);

/// How many elements launch_backward needs as a workspace where d_bias is wanted: none, but for
/// large batches.
int64_t backward_workspace(int64_t batch, int64_t state_size);

/// One launch, or two for large batches with d_bias. Returns the error of the launch.
template <typename scalar_t>
cudaError_t launch_backward(const BackwardParams<scalar_t>& params, cudaStream_t stream);

}  // namespace lltm::cuda
