// The kernels of the backward. plan.cpp chooses among them.
//
// Every launch function enqueues on `stream` of the current device, needs at least one row and one
// column of the state, and returns the error of its launch.
#pragma once

#include "../../../cell/accumulate.h"
#include "../../problem.h"
#include "../../scheduler/schedule_gradients.h"
#include "../bias_gradients.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lltm::cuda {

/// [old_h | input] transposed and rounded to TF32: one row per column, and zeros up to a multiple
/// of 16 rows.
struct TransposedInputs {
  int64_t batch;
  int64_t input_features;
  int64_t state_size;
  Matrix input;       // (batch, input_features)
  Matrix old_h;       // (batch, state_size)
  float* transposed;  // (columns(), row_stride()), at a multiple of 16 bytes, or null if not wanted
  // Whether its rows are in the order of the columns. Otherwise row n is that of dealt_column(n),
  // so that wgmma leaves a thread the sums of four consecutive columns.
  bool in_order;

  LLTM_HOST_DEVICE int64_t columns() const { return (state_size + input_features + 15) / 16 * 16; }
  LLTM_HOST_DEVICE int64_t row_stride() const { return (batch + 3) / 4 * 4; }
};

/// At the beginning of a workspace, if d_weights are wanted.
inline TransposedInputs transposed_inputs(const BackwardProblem& p,
                                          float* workspace,
                                          bool in_order) {
  return {.batch = p.batch,
          .input_features = p.input_features,
          .state_size = p.state_size,
          .input = p.input,
          .old_h = p.old_h,
          .transposed = p.d_weights.any_wanted() ? workspace : nullptr,
          .in_order = in_order};
}
inline int64_t transposed_floats(const BackwardProblem& p) {
  const TransposedInputs inputs = transposed_inputs(p, nullptr, false);
  return p.d_weights.any_wanted() ? inputs.columns() * inputs.row_stride() : 0;
}

template <typename scalar_t>
struct GateGradientsParams {
  int64_t batch;
  int64_t state_size;
  Steps<scalar_t> grad_h, grad_cell;  // (batch, state_size); null data for zeros
  Steps<scalar_t> old_cell;           // the same; not read for the LLTM
  const scalar_t* gates;              // (batch, kSaved * state_size), pre-activations
  const scalar_t* new_cell;           // (batch, state_size)
  scalar_t* d_gates;                  // (batch, kInputs * state_size), or null if not wanted
  int64_t d_gates_stride;
  scalar_t* d_bias;      // (kInputs * state_size), or null if not wanted
  scalar_t* d_old_cell;  // (batch, state_size), or null if not wanted
  // The blocks that are resident at once, two per multiprocessor: by themselves, and in clusters.
  int blocks_at_once, blocks_in_clusters;
  // bias_in_parts: blocks that share the batch leave parts of d_bias instead of adding them in
  // clusters. sums_bias: a kernel that is launched here adds the parts, rather than that of the
  // products.
  bool bias_in_parts, sums_bias;
  // If d_bias is wanted and has several parts: bias_parts x kSaved * state_size elements of
  // accumulate_t<scalar_t>.
  void* workspace;
  // Whether the next kernel may start before this one is complete. If this one has few blocks, it
  // always may.
  bool starts_next;
  TransposedInputs inputs;  // for products in TF32
  // Of the gates of a cell that does not add its sides, whose d_gates and d_bias are those of the
  // inputs: (batch, kGates * state_size), with the stride of d_gates, and (kGates * state_size).
  scalar_t *d_gates_of_h, *d_bias_hh;

  template <typename Cell>
  LLTM_HOST_DEVICE BiasGradients<Cell, scalar_t> biases() const {
    return {d_bias, d_bias_hh, state_size};
  }
};

/// The number of parts in which launch_gate_gradients computes d_bias.
template <typename scalar_t>
int64_t bias_parts(const GateGradientsParams<scalar_t>& params);

/// Computes d_gates, d_old_cell and d_bias, in one launch, or two if parts of d_bias are added.
/// scalar_t is double, float, c10::Half or c10::BFloat16; 16-bit types are computed in float.
template <typename Cell, typename scalar_t>
cudaError_t launch_gate_gradients(const GateGradientsParams<scalar_t>& params, cudaStream_t stream);

/// The floats of the workspace of launch_backward_wgmma. In kTf32 it begins with transposed_inputs,
/// in order unless plan.has_large_tiles().
inline int64_t workspace_floats(Arithmetic arithmetic,
                                const BackwardProblem& p,
                                const GradientPlan& plan) {
  if (arithmetic != Arithmetic::kFloat32) {
    return schedule_gradients(arithmetic, p, plan).floats_of_parts() +
           (arithmetic == Arithmetic::kTf32 ? transposed_floats(p) : 0);
  }
  // Whole matrices, [h | input].
  const int64_t weights = p.gates * (p.state_size + p.input_features);
  return p.d_weights.any_wanted() && plan.weight_parts > 1 ? plan.weight_parts * weights : 0;
}

/// Computes all wanted products, on compute capability 9.0 with code built for 90a. TMA can
/// describe all operands that these need (is_describable), except in kTf32 input and old_h, of
/// which there is a transposed copy. In kFloat32, of weights only the columns of h are read: those
/// of input are weights_input. The batch is below 2^30. `workspace` is at a multiple of 16 bytes.
/// The previous kernel is that of d_gates, or follows it.
template <Arithmetic kArithmetic>
cudaError_t launch_backward_wgmma(const BackwardProblem& problem,
                                  const GradientPlan& plan,
                                  float* workspace,
                                  cudaStream_t stream);
template <>
cudaError_t launch_backward_wgmma<Arithmetic::kFloat32>(const BackwardProblem& problem,
                                                        const GradientPlan& plan,
                                                        float* workspace,
                                                        cudaStream_t stream);

/// Computes all wanted products in one launch, in tiles of 64x64 or 128x128. The ranks share the K
/// = 3*state_size of a tile of d_old_h and d_input. More than one requires sm_90. Rows of all
/// operands start at multiples of 16 bytes. Of weights, only the columns of h are read: those of
/// input are weights_input.
template <Arithmetic kArithmetic>
cudaError_t launch_backward_tiles(const BackwardProblem& problem,
                                  const GradientPlan& plan,
                                  cudaStream_t stream);

/// Computes the whole backward in one launch, for float, c10::Half and c10::BFloat16 and at most
/// kFewRows rows, without TF32. It does not use cell.d_gates, cell.workspace or problem.d_gates. Of
/// a state that is h itself, d_old_h has all of the gradient, and cell.d_old_cell is null. `ranks`
/// blocks, a cluster, share the rows of weights; more than one requires sm_90.
template <typename Cell, typename scalar_t>
cudaError_t launch_backward_few_rows(const GateGradientsParams<scalar_t>& cell,
                                     const BackwardProblem& problem,
                                     int ranks,
                                     cudaStream_t stream);

}  // namespace lltm::cuda
