// All steps of a sequence in one launch. A block, or a cluster of blocks, keeps the columns of
// weights that belong to h on the chip and takes a group of rows of the batch through all steps,
// without talking to others.
// The product with the inputs, z_x, has been computed before, unless the kernel computes it.
//
// The kernels follow each other in this order: z_x, by a kernel of the library, by input_product.cu
// if it is small, or by input_product_wgmma_float32.cu -> recurrence_forward; recurrence_backward
// -> the products of d_gates, by kernels of the library or, if they are small, by
// gradient_products.cu. Which rows run at a time is decided on the device; the host knows only
// sizes. Nothing is read beyond a row's length except z_x, input, gates and cells, whose values
// there do not matter.
//
// Every launch function enqueues on `stream` of the current device, needs at least one row and one
// column of the state, and returns the error of its launch.
#pragma once

#include "../../../cell/lltm.h"
#include "../../ptx/device_function.h"
#include "../../step_problem.h"
#include "../../tile/elements.h"
#include "../bias_gradients.h"
#include "tile.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lltm::cuda {

/// The columns of weights that belong to h, (kGates * state_size, state_size), or to the input,
/// with any strides.
template <typename Element>
struct RecurrentWeights {
  const Element* data;
  int64_t strides[2];
};

/// A cell state in the operands' type or in float32; null data in both stands for zeros.
template <typename Element>
struct AnyCells {
  Steps<Element> rounded;
  Steps<float> exact;

  LLTM_DEVICE float at(int64_t row, int64_t column) const {
    return exact.data != nullptr     ? exact.at(0, row, column)
           : rounded.data != nullptr ? static_cast<float>(rounded.at(0, row, column))
                                     : 0.0f;
  }
};

/// Where a cell state is written, contiguous: in the operands' type or in float32. Null data in
/// both: it is not wanted.
template <typename Element>
struct CellsOut {
  Element* rounded;
  float* exact;

  /// round(value) converts to Element.
  template <typename Round>
  LLTM_DEVICE void store(int64_t index, float value, const Round& round) const {
    if (exact != nullptr) {
      exact[index] = value;
    }
    if (rounded != nullptr) {
      rounded[index] = round(value);
    }
  }
};

/// z_x of some steps: input times its columns of the weights, plus the bias.
template <typename Element>
struct InputProductProblem {
  int64_t steps, rows;
  int64_t input_features;
  int64_t columns;  // of z_x: kInputs * state_size
  Steps<Element> input;
  RecurrentWeights<Element> weights;
  const Element* bias;  // or null
  int64_t bias_stride;
  Element* z_x;  // (steps, rows, columns), contiguous
};

/// The same in float32 for matrices that TMA can describe (is_describable).
struct Float32InputProduct {
  int64_t rows;  // of all steps, fewer than 2^31
  int64_t input_features;
  int64_t columns;    // of z_x
  Matrix input;       // (rows, input_features)
  Matrix weights;     // (columns, input_features)
  const float* bias;  // or null
  int64_t bias_stride;
  float* z_x;  // (rows, columns), contiguous
};

/// Some steps of a sequence: in order of execution, those from `first_step` on. A step k is run at
/// the time k or, in reverse, steps - 1 - k.
template <typename Element>
struct RecurrenceForward {
  int64_t steps;  // of the whole sequence
  int64_t first_step, step_count;
  int64_t rows;
  int group_rows;  // of a cluster: at most those of its tile. A block by itself has all of them.
  int64_t state_size;
  bool reverse;
  RowsOfSequence rows_of_sequence;
  RecurrentWeights<Element> weights;
  // z_x with its bias added, (step_count, rows, kInputs * state_size), contiguous, in the order of
  // time. May be the part of `gates` that belongs to these steps if both sides are added (kAdds).
  // Unused by a kernel that multiplies the input itself (RecurrenceTile::x_inside).
  const Element* z_x;
  // Whether a kernel of this library, which computes z_x, is the previous one of the stream.
  // Everything else is then read while it runs.
  bool follows_input_product;
  // What a block by itself gets of shared memory at least, up to kSpreadBytes, so that blocks that
  // start early do not crowd onto a few multiprocessors.
  int least_shared_bytes;
  // What such a kernel multiplies, otherwise unused with null data: input, (steps, rows,
  // input_features), at least one and at most as many as the kernel takes; its columns of the
  // weights, (kGates * state_size, input_features), with any strides; and the bias,
  // (kSaved * state_size,), or null. If the cell does not add both sides, all kernels read the bias
  // where x gives nothing.
  Steps<Element> input;
  int64_t input_features;
  RecurrentWeights<Element> input_weights;
  const Element* bias;
  int64_t bias_stride;
  // The state before the first of these steps; its strides of time are unused.
  Steps<Element> h0;
  AnyCells<Element> c0;
  // Contiguous, of the whole sequence. cells and gates are null if not kept.
  Element* output;  // (steps, rows, state_size)
  Element* cells;   // (steps, rows, state_size)
  Element* gates;   // (steps, rows, kSaved * state_size)
  // The state after the last of these steps, (rows, state_size). h_n may be h0, and c_n may be c0.
  Element* h_n;
  CellsOut<Element> c_n;
};

/// The gradients of all pre-activations, from the last step that was run to the first.
template <typename Element>
struct RecurrenceBackward {
  int64_t steps;
  int64_t rows;
  int group_rows;
  int64_t state_size;
  bool reverse;  // of the forward
  RowsOfSequence rows_of_sequence;
  RecurrentWeights<Element> weights;
  const Element* gates;  // (steps, rows, kSaved * state_size), contiguous
  const Element* cells;  // (steps, rows, state_size), contiguous; the output of a cell of kCarriesH
  // Gradients of the results; null data if there is none. Their values beyond a row's length do not
  // matter.
  Steps<Element> grad_output, grad_cells, grad_h_n;
  AnyCells<Element> grad_c_n;
  // The cell state before the first step, which only a cell with kReadsOldCell needs.
  AnyCells<Element> c0;
  Element* d_gates;        // (steps, rows, kSaved * state_size); zeros beyond the length
  int64_t d_gates_stride;  // between rows
  // The sums of d_gates over the steps and the rows of a group: (groups, kSaved * state_size), to
  // be added in order; null if not wanted.
  float* d_bias_parts;
  Element* d_h0;           // (rows, state_size), contiguous, or null if not wanted
  CellsOut<Element> d_c0;  // of h0 if the cell carries h
};

/// More than half of the shared memory of any multiprocessor.
constexpr int kSpreadBytes = 116 * 1024;

/// What is computed from d_gates of all steps. Null results are not wanted.
///   d_weights = d_gates.T @ [old_h | input], (columns, state_size + input_features)
///   d_input = d_gates @ input_weights, (steps, rows, input_features), contiguous
/// Each side has its own columns of d_gates. Beyond a row's length, where d_gates are zeros, input
/// does not matter, and d_input is zero. All cells that add their sides are alike, but in
/// `columns`.
template <typename Cell, typename Element>
struct GradientProducts {
  OldStates<Element> old_h;
  int64_t state_size, input_features;
  int64_t columns;  // of a side: kGates * state_size
  Steps<Element> input;
  RecurrentWeights<Element> input_weights;  // (columns, input_features)
  const Element* d_gates;
  int64_t d_gates_stride;                // between rows
  BiasSum<Cell, Element, float> d_bias;  // of its parts
  WeightGradients<Element> d_weights;
  // The parts of d_weights, each a sum over some rows of d_gates, or null if there is one.
  GradientParts parts;
  float* weight_parts;  // (parts.count, columns, state_size + input_features)
  Element* d_input;
};

/// By mma.sync with float32 sums, on sm_80 and newer, for fewer than 2^31 rows. The next kernel of
/// the stream may start when this one has waited for the kernels before it.
template <typename Element>
cudaError_t launch_input_product(const InputProductProblem<Element>& problem, cudaStream_t stream);

/// The same on compute capability 9.0 with code built for 90a, in tiles of 64 or 128 rows.
cudaError_t launch_input_product_wgmma_float32(const Float32InputProduct& problem,
                                               int tile_rows,
                                               int multiprocessors,
                                               cudaStream_t stream);

/// By multiply-adds with float32 sums, after launch_recurrence_fma or launch_recurrence_mma: what
/// these do not write is read before they are complete. Fewer than 2^31 rows in all steps.
template <typename Cell, typename Element>
cudaError_t launch_gradient_products(const GradientProducts<Cell, Element>& problem,
                                     cudaStream_t stream);

/// In float32, by multiply-adds of the CUDA cores (fma.cuh).
template <typename Cell>
cudaError_t launch_recurrence_fma(const RecurrenceForward<float>& problem,
                                  const RecurrenceTile& tile,
                                  cudaStream_t stream);
template <typename Cell>
cudaError_t launch_recurrence_fma(const RecurrenceBackward<float>& problem,
                                  const RecurrenceTile& tile,
                                  cudaStream_t stream);

/// In 16 bits, by mma.sync with float32 sums, on sm_80 and newer (mma.cuh).
template <typename Cell, typename Element>
cudaError_t launch_recurrence_mma(const RecurrenceForward<Element>& problem,
                                  const RecurrenceTile& tile,
                                  cudaStream_t stream);
template <typename Cell, typename Element>
cudaError_t launch_recurrence_mma(const RecurrenceBackward<Element>& problem,
                                  const RecurrenceTile& tile,
                                  cudaStream_t stream);

}  // namespace lltm::cuda
