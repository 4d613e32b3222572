// The CPU kernels: the cell's pointwise math and its matrix products, on raw pointers. They know no
// Tensor and no thread: a kernel does the tasks [begin, end) of its work, so that its caller may
// spread them over threads. No two tasks write the same element, and how the work is cut into tasks
// does not change the order of any sum: the bits of a result are the same for any number of
// threads.
//
// Matrices are row-major with contiguous rows; strides and sizes are in elements. scalar_t is
// double, float, c10::Half or c10::BFloat16 (computed in float); real is double or float.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>
#include <tuple>

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
struct PointwiseKernels {
  /// Both: a task is a row of the batch.
  void (*forward)(const ForwardParams<scalar_t>& params, int64_t begin, int64_t end);
  void (*backward)(const BackwardParams<scalar_t>& params, int64_t begin, int64_t end);
};

/// [old_h | input], which is read where it lies and never built.
template <typename real>
struct StateParams {
  int64_t batch;
  int64_t state_size;
  int64_t input_features;
  const real* old_h;
  int64_t old_h_stride;
  const real* input;
  int64_t input_stride;
};

/// The whole forward pass: gates = states @ weights.T + bias, and the new state from them.
template <typename real>
struct CellParams {
  StateParams<real> states;
  const real* weights;
  int64_t weights_stride;
  const real* bias;      // (3*state_size), or null
  const real* old_cell;  // (batch, state_size)
  real* gates;           // (batch, 3*state_size)
  real* new_h;           // (batch, state_size)
  real* new_cell;        // (batch, state_size)
  // The states, transposed into panels of panel_vectors vectors of batch rows by pack_states();
  // null where cell_needs_panels() says no.
  const real* panels;
  int panel_vectors;
};

/// One or both of d_old_h and d_input: out = d_gates @ weights[:, some columns].
template <typename real>
struct StateGradientParams {
  int64_t batch;
  int64_t gates;        // 3*state_size
  int64_t columns;      // of weights and of out
  const real* d_gates;  // (batch, gates)
  const real* weights;  // (gates, columns), its first column that of out
  int64_t weights_stride;
  real* out;           // (batch, columns)
  int64_t row_chunks;  // the batch is cut into so many chunks, each a task a panel of columns
};

/// d_weights = d_gates.T @ states.
template <typename real>
struct WeightGradientParams {
  StateParams<real> states;
  const real* d_gates;  // (batch, 3*state_size)
  real* panels;         // room for weight_panels_size() elements
  real* d_weights;      // (3*state_size, state_size + input_features)
};

/// d_bias = sum of d_gates over the batch.
template <typename real>
struct BiasGradientParams {
  int64_t batch;
  int64_t gates;        // 3*state_size
  const real* d_gates;  // (batch, gates)
  real* d_bias;         // (gates)
};

template <typename real>
struct ProductKernels {
  int64_t lanes;          // of a vector
  int max_panel_vectors;  // largest panel_vectors of CellParams

  /// A batch this small is multiplied row by row, without panels.
  bool (*cell_needs_panels)(int64_t batch);
  /// A task is a group of `lanes` columns of the states, in every panel.
  int64_t (*pack_tasks)(const StateParams<real>& states);
  void (*pack_states)(
      const StateParams<real>& states, int panel_vectors, real* panels, int64_t begin, int64_t end);
  /// A task is a group of `lanes` state indices, with their three gates, for one panel.
  int64_t (*cell_tasks)(const CellParams<real>& params);
  void (*cell)(const CellParams<real>& params, int64_t begin, int64_t end);

  /// A task is a panel of columns for a chunk of the batch.
  int64_t (*state_gradient_tasks)(const StateGradientParams<real>& params);
  void (*state_gradient)(const StateGradientParams<real>& params, int64_t begin, int64_t end);

  /// For each block of weight_depth rows of the batch in turn: pack_weight_panels(), a task a panel
  /// of columns, then weight_gradient(), a task a few rows of d_weights in a group of panels.
  int64_t weight_depth;
  int64_t (*weight_panels_size)(const StateParams<real>& states);
  int64_t (*weight_panels)(const StateParams<real>& states);
  void (*pack_weight_panels)(const WeightGradientParams<real>& params,
                             int64_t row,
                             int64_t begin,
                             int64_t end);
  int64_t (*weight_gradient_tasks)(const StateParams<real>& states);
  void (*weight_gradient)(const WeightGradientParams<real>& params,
                          int64_t row,
                          int64_t begin,
                          int64_t end);

  /// A task is a column of d_gates.
  void (*bias_gradient)(const BiasGradientParams<real>& params, int64_t begin, int64_t end);
};

/// All kernels for one instruction set.
struct Kernels {
  std::tuple<PointwiseKernels<double>,
             PointwiseKernels<float>,
             PointwiseKernels<c10::Half>,
             PointwiseKernels<c10::BFloat16>>
      pointwise;
  std::tuple<ProductKernels<double>, ProductKernels<float>> products;
};

/// The kernels for the machine's instruction set, or for a lower one that ATEN_CPU_CAPABILITY
/// names.
const Kernels& kernels();

const Kernels& baseline_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();

}  // namespace lltm::cpu
