// The kernels of the forward. Which of them runs for which problem is plan.cpp's business.
//
// Every launch function enqueues on `stream` of the current device, needs at least one row and one
// column of the state, and returns the error of its launch.
#pragma once

#include "../problem.h"

#include <cuda_runtime_api.h>

namespace lltm::cuda {

/// Whether the kernels here run in clusters on the current device: on sm_90 and newer, where they
/// were compiled for it.
bool clusters_available();

/// A block's share of the forward: rows of the batch x columns of the hidden state, whose three
/// gates it computes all.
enum class ForwardTile { k16x8, k64x8, k64x32, k128x32, kCount };

/// The whole forward in one launch. `split` blocks, a cluster, share the K of a tile; more than one
/// needs sm_90.
template <Arithmetic kArithmetic>
cudaError_t launch_forward_tiles(const ForwardProblem& problem,
                                 ForwardTile tile,
                                 int split,
                                 cudaStream_t stream);

/// A block's share of the forward by Hopper's own instructions. Pairs of tiles, of the same hidden
/// columns, are in one cluster and read the weights once.
enum class WgmmaTile { k64x8, k64x24, k64x40, k64x40InPairs, k128x32InPairs, kCount };

/// As launch_forward_tiles, for a GPU of architecture 9.0 and code built for 90a. kTf32 (which here
/// cuts off what TF32 has no room for), kFloat16 and kBFloat16. Matrices start at, and rows are,
/// multiples of 16 bytes, state_size too; input_features is not zero.
template <Arithmetic kArithmetic>
cudaError_t launch_forward_wgmma(const ForwardProblem& problem,
                                 WgmmaTile tile,
                                 int split,
                                 cudaStream_t stream);

/// A block's share of the forward in float32 by three TF32 products of Hopper's own instructions.
enum class ThreeTf32Tile { k64x8, k64x32, k128x32, kCount };

/// As launch_forward_wgmma, for kFloat32.
cudaError_t launch_forward_three_tf32(const ForwardProblem& problem,
                                      ThreeTf32Tile tile,
                                      int split,
                                      cudaStream_t stream);

/// How many rows of the batch the kernels for few of them take at most, and the warps of a block of
/// the forward.
constexpr int kFewRows = 8, kFewRowsWarps = 16;

/// The whole forward in one launch for float tensors and at most kFewRows rows, without TF32. A
/// block takes `columns` of the state, at most kFewRowsWarps. Matrices start at, and rows are,
/// multiples of 16 bytes, state_size and input_features too.
cudaError_t launch_forward_few_rows(const ForwardProblem& problem,
                                    int columns,
                                    cudaStream_t stream);

/// The cell's elements, where the library has formed the products. All matrices are contiguous.
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
