// The CUDA kernels that compute the cell's matrix products themselves, tile by tile on the tensor
// cores (sm_80 on). They know no Tensor. Which of them runs for which sizes is path.cpp's business.
//
// Matrices are row-major; consecutive elements of a row are adjacent, rows are `stride` elements
// apart. Every launch function enqueues on `stream` of the current device and needs at least one
// row and one column of the state.
#pragma once

#include "kernels.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lltm::cuda {

/// The type of a product's operands, and how they are multiplied. Sums are float32 always.
enum class Arithmetic {
  kFloat32,   // float tensors, each product as exact as float32's (three TF32 products)
  kTf32,      // float tensors, rounded to TF32
  kFloat16,   // c10::Half
  kBFloat16,  // c10::BFloat16
};

/// Whether the kernels here run in clusters on the current device: on sm_90 and newer, where they
/// were compiled for it.
bool clusters_available();

/// A block's share of the forward: rows of the batch x columns of the hidden state, whose three
/// gates it computes all.
enum class ForwardTile { k16x8, k64x8, k64x32, k128x32, kCount };

struct FusedForwardParams {
  int64_t batch;
  int64_t input_features;
  int64_t state_size;
  const void* input;  // (batch, input_features)
  int64_t input_stride;
  const void* weights;  // (3*state_size, state_size + input_features)
  int64_t weights_stride;
  const void* bias;   // (3*state_size), or null
  const void* old_h;  // (batch, state_size)
  int64_t old_h_stride;
  const void* old_cell;  // (batch, state_size)
  int64_t old_cell_stride;
  void* new_h;     // (batch, state_size), contiguous
  void* new_cell;  // (batch, state_size), contiguous
  void* gates;     // (batch, 3*state_size), contiguous, pre-activations
};

/// The whole forward in one launch. `split` blocks, a cluster, share the K of a tile; more than one
/// needs sm_90. Returns the error of the launch.
template <Arithmetic kArithmetic>
cudaError_t launch_fused_forward(const FusedForwardParams& params,
                                 ForwardTile tile,
                                 int split,
                                 cudaStream_t stream);

/// A block's share of the forward by Hopper's own instructions. Pairs of tiles, of the same hidden
/// columns, are in one cluster and read the weights once.
enum class HopperTile { k64x8, k64x24, k64x40, k64x40InPairs, k128x32InPairs, kCount };

/// As launch_fused_forward, for a GPU of architecture 9.0 and code built for 90a. kTf32 (which here
/// cuts off what TF32 has no room for), kFloat16 and kBFloat16. Matrices start at, and rows are,
/// multiples of 16 bytes, state_size too; input_features is not zero.
template <Arithmetic kArithmetic>
cudaError_t launch_hopper_forward(const FusedForwardParams& params,
                                  HopperTile tile,
                                  int split,
                                  cudaStream_t stream);

/// A block's share of the forward in float32 by Hopper's own instructions.
enum class SplitTile { k64x8, k64x32, k128x32, kCount };

/// As launch_hopper_forward, for kFloat32.
cudaError_t launch_split_forward(const FusedForwardParams& params,
                                 SplitTile tile,
                                 int split,
                                 cudaStream_t stream);

/// How many rows of the batch the kernels for few of them take at most, and the warps of a block of
/// the forward.
constexpr int kFewRows = 8, kFewRowsWarps = 16;

/// The whole forward in one launch for float tensors and at most kFewRows rows, without TF32. A
/// block takes `columns` of the state, at most kFewRowsWarps. Matrices start at, and rows are,
/// multiples of 16 bytes, state_size and input_features too.
cudaError_t launch_few_rows_forward(const FusedForwardParams& params,
                                    int columns,
                                    cudaStream_t stream);

/// A block's share of a gradient's product: rows x columns of the result.
enum class ProductTile { k64x64, k128x128, kCount };

/// d_old_h, d_input = d_gates @ weights and d_weights = d_gates.T @ [old_h, input].
struct BackwardProductsParams {
  int64_t batch;
  int64_t input_features;
  int64_t state_size;
  const void* d_gates;  // (batch, 3*state_size), contiguous
  const void* input;    // (batch, input_features)
  int64_t input_stride;
  const void* weights;  // (3*state_size, state_size + input_features)
  int64_t weights_stride;
  const void* old_h;  // (batch, state_size)
  int64_t old_h_stride;
  void* d_old_h;    // (batch, state_size), contiguous, or null where not wanted
  void* d_input;    // (batch, input_features), contiguous, or null where not wanted
  void* d_weights;  // (3*state_size, state_size + input_features), contiguous, or null
};

/// All wanted products in one launch. `split` blocks, a cluster, share the K = 3*state_size of a
/// tile of d_old_h and d_input; more than one needs sm_90.
template <Arithmetic kArithmetic>
cudaError_t launch_backward_products(const BackwardProductsParams& params,
                                     ProductTile tile,
                                     int split,
                                     cudaStream_t stream);

/// A block's share of a gradient's product in float32 by Hopper's own instructions.
enum class SplitProductTile { k64x96, k128x96, kCount };

/// As launch_backward_products, for a GPU of architecture 9.0 and code built for 90a, for kFloat32.
/// Matrices start at, and rows are, multiples of 16 bytes, state_size too; input_features is not
/// zero.
cudaError_t launch_split_backward(const BackwardProductsParams& params,
                                  SplitProductTile tile,
                                  int split,
                                  cudaStream_t stream);

/// How many rows of the batch a block has at a time of d_old_h and d_input in TF32 by Hopper's own
/// instructions.
enum class Tf32BatchTile { k64, k128, k256, kCount };

/// As launch_split_backward, for kTf32 and batches of less than 2^30. `parts` blocks share the K =
/// 3*state_size of a tile of d_old_h and d_input. `pairs`: of blocks, at most. `workspace` has
/// tf32_backward_workspace floats, at a multiple of 16 bytes. It begins with transposed_inputs,
/// which the kernel of d_gates has to form, and to round d_gates to TF32.
cudaError_t launch_tf32_backward(const BackwardProductsParams& params,
                                 Tf32BatchTile tile,
                                 int parts,
                                 int pairs,
                                 float* workspace,
                                 cudaStream_t stream);
TransposedInputs transposed_inputs(const BackwardProductsParams& params, float* workspace);
int64_t tf32_backward_workspace(const BackwardProductsParams& params,
                                Tf32BatchTile tile,
                                int parts);

/// As launch_backward_products, for a GPU of architecture 9.0 and code built for 90a: kFloat16 and
/// kBFloat16. Matrices start at, and rows are, multiples of 16 bytes, state_size and
/// input_features of 8; the latter may be zero. `parts` blocks share the K = 3*state_size of a tile
/// of d_old_h and d_input; an even number of them where the batch is at most 128. `pairs`: of
/// blocks, at most. More than one part needs hopper_backward_workspace floats of `workspace`.
template <Arithmetic kArithmetic>
cudaError_t launch_hopper_backward_products(const BackwardProductsParams& params,
                                            int parts,
                                            int pairs,
                                            float* workspace,
                                            cudaStream_t stream);
int64_t hopper_backward_workspace(const BackwardProductsParams& params, int parts);

/// As launch_hopper_backward_products, in small tiles. `split` blocks, a cluster, share the K of a
/// tile of d_old_h and d_input: a power of two. The kernel before it must have waited for what
/// wrote everything but d_gates before it started this one, as launch_backward's does.
template <Arithmetic kArithmetic>
cudaError_t launch_hopper_small_backward(const BackwardProductsParams& params,
                                         int split,
                                         cudaStream_t stream);

/// The whole backward in one launch, for float, c10::Half and c10::BFloat16 and at most kFewRows
/// rows, without TF32. Uses neither cell.d_gates, cell.workspace nor products.d_gates. `split`
/// blocks, a cluster, share the rows of weights; more than one needs sm_90. Matrices start at, and
/// rows are, multiples of 16 bytes, state_size too; input_features is a multiple of 4.
template <typename scalar_t>
cudaError_t launch_few_rows_backward(const BackwardParams<scalar_t>& cell,
                                     const BackwardProductsParams& products,
                                     int split,
                                     cudaStream_t stream);

}  // namespace lltm::cuda
