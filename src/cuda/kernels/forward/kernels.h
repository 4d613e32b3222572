// The kernels of the forward. plan.cpp chooses among them.
//
// Every launch function enqueues on `stream` of the current device, needs at least one row and one
// column of the state, and returns the error of its launch.
#pragma once

#include "../../../cell/combined.h"
#include "../../../cell/gru.h"
#include "../../../cell/lltm.h"
#include "../../../cell/lstm.h"
#include "../../step_problem.h"
#include "../../tile/shapes.h"

#include <cuda_runtime_api.h>

namespace lltm::cuda {

/// Problem is ForwardProblem or OneStepProblem, the cell's forward, or StepProblem, a step of a
/// sequence: of the LLTM ForwardProblem and StepProblem, of others OneStepProblem and StepProblem.
/// A GRU's StepProblem has z_x, and no kernel of a few rows, or it has input_features and is one of
/// cell::Combined.

/// Computes the whole forward in one launch, of an LLTM. `ranks` blocks, a cluster, share the K of
/// a tile. More than one requires sm_90.
template <Arithmetic kArithmetic, typename Problem>
cudaError_t launch_forward_tiles(const Problem& problem,
                                 const TileShape& tile,
                                 int ranks,
                                 cudaStream_t stream);

/// As launch_forward_tiles, of either cell, on compute capability 9.0 with code built for 90a.
/// Input, weights and old_h that TMA cannot describe (is_describable) must be packed first.
template <Arithmetic kArithmetic, typename Cell, typename Problem>
cudaError_t launch_forward_wgmma(const Problem& problem,
                                 const TileShape& tile,
                                 int ranks,
                                 cudaStream_t stream);

/// Computes the whole forward in one launch, for at most kMostFewRows rows, or kFewRows in a step,
/// without TF32. state_size + input_features is below 2^30. A step of a sequence is in float, its
/// matrices start at multiples of 16 bytes, and their rows, state_size and input_features are
/// multiples of 16 bytes. The columns of the state are distributed over the device's
/// multiprocessors.
template <Arithmetic kArithmetic, typename Cell, typename Problem>
cudaError_t launch_forward_few_rows(const Problem& problem,
                                    int multiprocessors,
                                    cudaStream_t stream);

/// The elements of a cell whose products the library has computed. All matrices are contiguous.
template <typename scalar_t>
struct CellForwardParams {
  int64_t batch;
  int64_t state_size;
  const scalar_t* gates;     // (batch, 3*state_size), pre-activations
  const scalar_t* old_cell;  // (batch, state_size)
  scalar_t* new_h;           // (batch, state_size)
  scalar_t* new_cell;        // (batch, state_size)
};

/// scalar_t is double, float, c10::Half or c10::BFloat16; 16-bit types are computed in float.
template <typename scalar_t>
cudaError_t launch_cell_forward(const CellForwardParams<scalar_t>& params, cudaStream_t stream);

}  // namespace lltm::cuda
