// The kernels of a sequence's forward and backward, except those that it shares with the cell.
//
// Every launch function enqueues on `stream` of the current device, needs at least one row and one
// column of the state, and returns the error of its launch. Which rows run at a time is decided on
// the device; the host knows only sizes. scalar_t is double, float, c10::Half or c10::BFloat16;
// 16-bit types are computed in float.
#pragma once

#include "../../../cell/accumulate.h"
#include "../../step_problem.h"
#include "../../tile/elements.h"
#include "../../tile/shapes.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lltm::cuda {

/// A step of any cell (src/cell) whose products the library has computed.
template <typename scalar_t>
struct SequenceStepParams {
  StepProblem step;  // without the operands of its products
  // (batch, kSaved * state_size) and (batch, kGates * state_size), of input and of h.
  const accumulate_t<scalar_t>*z_input, *z_h;
};

template <typename Cell, typename scalar_t>
cudaError_t launch_sequence_step(const SequenceStepParams<scalar_t>& params, cudaStream_t stream);

/// The state that the first step of each row starts from: h0 and c0, or zeros where it is reset.
/// Rows that never run get h_n.
template <typename scalar_t>
struct SequenceStartParams {
  int64_t rows;
  int64_t state_size;
  int64_t steps;
  bool reverse;
  RowsOfSequence rows_of_sequence;
  Steps<scalar_t> h0;  // null data for zeros; its stride of time is unused
  Steps<scalar_t> c0;  // the same; null data if c0_float has it
  Steps<float> c0_float;
  scalar_t* h[2];                // (rows, state_size), each null if not needed
  int64_t h_stride;              // of their rows
  accumulate_t<scalar_t>* cell;  // (rows, state_size), contiguous, or null
  scalar_t* h_n;                 // (rows, state_size), contiguous
};

template <typename scalar_t>
cudaError_t launch_sequence_start(const SequenceStartParams<scalar_t>& params, cudaStream_t stream);

/// The biases of both sides of a cell that does not add them, as what is saved takes them: sums of
/// both are rounded.
template <typename scalar_t>
struct SavedBiasParams {
  int64_t state_size;
  const scalar_t *bias, *bias_hh;  // null for zeros
  int64_t bias_stride, bias_hh_stride;
  scalar_t* saved;  // (kSaved * state_size,), contiguous
};

template <typename Cell, typename scalar_t>
cudaError_t launch_saved_bias(const SavedBiasParams<scalar_t>& params, cudaStream_t stream);

/// One step of the backward: takes the gradient of h that the step at last_t left, and turns the
/// pre-activations of time t into d_gates.
template <typename scalar_t>
struct SequenceGradientsParams {
  int64_t steps;
  int64_t rows;
  int64_t state_size;
  int64_t t;       // kNoTime: only the gradient of h is computed
  int64_t last_t;  // the time of the previous step of the backward; kNoTime: there is none
  // Whether the previous kernel on the stream is another step with a product.
  bool follows_a_product;
  RowsOfSequence rows_of_sequence;
  Steps<scalar_t> grad_output;           // null data if there is none
  Steps<scalar_t> grad_cells;            // null data if there is none
  const accumulate_t<scalar_t>* from_h;  // (rows, state_size): d_gates[last_t] @ W_h
  accumulate_t<scalar_t>* d_h;           // (rows, state_size)
  accumulate_t<scalar_t>* d_cell;        // (rows, state_size)
  // At time t: a multiplication per element for it would take longer.
  const scalar_t* gates;          // (rows, kGates * state_size), contiguous
  const scalar_t* cells;          // (rows, state_size), contiguous
  scalar_t* d_gates;              // (rows, kGates * state_size)
  const scalar_t* all_d_gates;    // (steps*rows, kGates * state_size)
  int64_t d_gates_stride;         // of both
  OldStates<scalar_t> old_cells;  // of all steps; not read for the LLTM
};

template <typename Cell, typename scalar_t>
cudaError_t launch_sequence_gradients(const SequenceGradientsParams<scalar_t>& params,
                                      cudaStream_t stream);

/// The same with the product, of the LLTM: from_h is d_gates[last_t] @ weights_h, in float32. Rows
/// of both start at multiples of 16 bytes. `ranks` blocks, a cluster, share the K = 3*state_size of
/// a tile; more than one requires sm_90. The previous kernel must have waited for whatever wrote
/// the operands other than d_gates[last_t], d_h and d_cell before it started this one, as both of
/// these kernels do.
template <Arithmetic kArithmetic>
cudaError_t launch_sequence_gradient_tiles(
    const SequenceGradientsParams<TensorElement<kArithmetic>>& params,
    const Matrix& weights_h,
    const TileShape& tile,
    int ranks,
    cudaStream_t stream);

/// As launch_sequence_gradient_tiles, for either cell, on compute capability 9.0 with code built
/// for 90a, and with fewer than 2^31 rows in all steps. `weights` is weights_h transposed,
/// (state_size, kGates * state_size). Only some tiles support a state_size that is no multiple of
/// four (plan/sequence_gradients.cpp).
template <typename Cell, Arithmetic kArithmetic>
cudaError_t launch_sequence_gradient_wgmma(
    const SequenceGradientsParams<TensorElement<kArithmetic>>& params,
    const Matrix& weights,
    const TileShape& tile,
    int ranks,
    cudaStream_t stream);

/// Writes the h or c that every step started from, of all rows.
template <typename scalar_t>
struct OldStatesParams {
  OldStates<scalar_t> states;
  int64_t state_size;
  scalar_t* old_h;  // (steps * rows, state_size)
  int64_t old_h_stride;
};

template <typename scalar_t>
cudaError_t launch_old_states(const OldStatesParams<scalar_t>& params, cudaStream_t stream);

}  // namespace lltm::cuda
