// The CPU kernels: the cell's pointwise math and its matrix products, on raw pointers. They know no
// Tensor and no thread: a kernel does the tasks [begin, end) of its work, so that its caller may
// spread them over threads. No two tasks write the same element, and how the work is cut into tasks
// does not change the order of any sum: the bits of a result are the same for any number of
// threads.
//
// Matrices are row-major with contiguous rows; strides and sizes are in elements. scalar_t is
// double, float, c10::Half or c10::BFloat16; sums are in accumulate_t of it until they are whole.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>
#include <tuple>
#include <type_traits>

namespace lltm::cpu {

/// What scalar_t is computed in. Panels hold operands of its size: see Operand in simd.h.
template <typename scalar_t>
using accumulate_t = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;

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
template <typename scalar_t>
struct StateParams {
  int64_t batch;
  int64_t state_size;
  int64_t input_features;
  const scalar_t* old_h;
  int64_t old_h_stride;
  const scalar_t* input;
  int64_t input_stride;
};

/// The whole forward pass: gates = states @ weights.T + bias, and the new state from them.
template <typename scalar_t>
struct CellParams {
  StateParams<scalar_t> states;
  const scalar_t* weights;
  int64_t weights_stride;
  const scalar_t* bias;      // (3*state_size), or null
  const scalar_t* old_cell;  // (batch, state_size)
  scalar_t* gates;           // (batch, 3*state_size)
  scalar_t* new_h;           // (batch, state_size)
  scalar_t* new_cell;        // (batch, state_size)
  // The states, transposed into panels of panel_vectors vectors of batch rows by pack_states();
  // null where cell_needs_panels() says no.
  const accumulate_t<scalar_t>* panels;
  int panel_vectors;
};

/// One or both of d_old_h and d_input: out = d_gates @ weights[:, some columns].
template <typename scalar_t>
struct StateGradientParams {
  int64_t batch;
  int64_t gates;            // 3*state_size
  int64_t columns;          // of weights and of out
  const scalar_t* d_gates;  // (batch, gates)
  const scalar_t* weights;  // (gates, columns), its first column that of out
  int64_t weights_stride;
  scalar_t* out;       // (batch, columns)
  int64_t row_chunks;  // the batch is cut into so many chunks, each a task a panel of columns
};

/// d_weights = d_gates.T @ states.
template <typename scalar_t>
struct WeightGradientParams {
  StateParams<scalar_t> states;
  const scalar_t* d_gates;         // (batch, 3*state_size)
  scalar_t* d_weights;             // (3*state_size, state_size + input_features)
  int64_t panel_groups;            // the panels of columns of states are cut into so many groups
  accumulate_t<scalar_t>* panels;  // those from first_panel on, each of weight_panel_size()
  int64_t first_panel;
};

/// d_bias = sum of d_gates over the batch.
template <typename scalar_t>
struct BiasGradientParams {
  int64_t batch;
  int64_t gates;            // 3*state_size
  const scalar_t* d_gates;  // (batch, gates)
  scalar_t* d_bias;         // (gates)
};

template <typename scalar_t>
struct ProductKernels {
  int64_t lanes;          // of a vector
  int max_panel_vectors;  // largest panel_vectors of CellParams

  /// A batch this small is multiplied row by row, without panels.
  bool (*cell_needs_panels)(int64_t batch);
  /// A task is a group of `lanes` columns of the states, in every panel.
  int64_t (*pack_tasks)(const StateParams<scalar_t>& states);
  int64_t (*state_panels_size)(const StateParams<scalar_t>& states);
  void (*pack_states)(const StateParams<scalar_t>& states,
                      int panel_vectors,
                      accumulate_t<scalar_t>* panels,
                      int64_t begin,
                      int64_t end);
  /// A task is a group of `lanes` state indices, with their three gates, for one panel.
  int64_t (*cell_tasks)(const CellParams<scalar_t>& params);
  void (*cell)(const CellParams<scalar_t>& params, int64_t begin, int64_t end);

  /// A task is a panel of columns for a chunk of the batch, of this many rows at most.
  int64_t max_rows_per_chunk;
  int64_t (*state_gradient_tasks)(const StateGradientParams<scalar_t>& params);
  void (*state_gradient)(const StateGradientParams<scalar_t>& params, int64_t begin, int64_t end);

  /// First pack_weight_panels(), a task a panel of columns, then weight_gradient(), a task a few
  /// rows of d_weights in a group of panels, of this many at most.
  int64_t max_panels_per_group;
  int64_t (*weight_panel_size)(const StateParams<scalar_t>& states);
  int64_t (*weight_panels)(const StateParams<scalar_t>& states);
  int64_t (*first_panel_of)(const WeightGradientParams<scalar_t>& params, int64_t group);
  void (*pack_weight_panels)(const WeightGradientParams<scalar_t>& params,
                             int64_t begin,
                             int64_t end);
  int64_t (*weight_gradient_tasks)(const WeightGradientParams<scalar_t>& params);
  void (*weight_gradient)(const WeightGradientParams<scalar_t>& params, int64_t begin, int64_t end);

  /// A task is a column of d_gates.
  void (*bias_gradient)(const BiasGradientParams<scalar_t>& params, int64_t begin, int64_t end);
};

/// A list of types, once, for all that is made for each.
template <typename... scalars>
struct KernelsFor {
  std::tuple<PointwiseKernels<scalars>...> pointwise;
  std::tuple<ProductKernels<scalars>...> products;
};

/// All kernels for one instruction set.
using Kernels = KernelsFor<double, float, c10::Half, c10::BFloat16>;

/// The kernels for the machine's instruction set, or for a lower one that ATEN_CPU_CAPABILITY
/// names: avx512 is AVX-512 without dot products of bfloat16.
const Kernels& kernels();

const Kernels& baseline_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
/// The products in bfloat16 for AVX-512 with dot products of bfloat16.
const ProductKernels<c10::BFloat16>& avx512_bfloat16_products();

}  // namespace lltm::cpu
