// The CPU kernels: the cells' pointwise math, their matrix products, and the steps of a sequence.
// They work on raw pointers and are independent of tensors and threads: a kernel runs the tasks
// [begin, end) of its work, and its caller may divide the tasks among threads. No two tasks write
// the same element, and the division into tasks does not change the order of any sum, so results
// are bitwise identical for any number of threads.
//
// Matrices are row-major with contiguous rows; strides and sizes are in elements. scalar_t is
// double, float, c10::Half or c10::BFloat16; sums are accumulated in accumulate_t<scalar_t>, and
// panels hold operands of its size (operand.h). `gates` is the number of a cell's gates times
// state_size, which is that of its inputs, too, and `saved` that of the numbers that it saves.
#pragma once

#include "../../cell/accumulate.h"
#include "../../cell/cell_type.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>

namespace lltm::cpu {

/// The cell state of a batch or its gradient, (batch, state_size), in the accumulation type or else
/// rounded; both are null for zeros, where these are allowed.
template <typename scalar_t>
struct CellsIn {
  const scalar_t* rounded;
  const accumulate_t<scalar_t>* exact;

  void read(int64_t row, int64_t state_size, accumulate_t<scalar_t>* to) const {
    if (exact) {
      std::copy_n(exact + row * state_size, state_size, to);
    } else if (rounded) {
      std::copy_n(rounded + row * state_size, state_size, to);
    }
  }
};

/// The same, for results. What is not wanted is null.
template <typename scalar_t>
struct CellsOut {
  scalar_t* rounded;
  accumulate_t<scalar_t>* exact;

  bool is_wanted() const { return exact || rounded; }

  void write(int64_t row, int64_t state_size, const accumulate_t<scalar_t>* from) const {
    if (exact) {
      std::copy_n(from, state_size, exact + row * state_size);
    }
    if (rounded) {
      std::copy_n(from, state_size, rounded + row * state_size);
    }
  }
};

template <typename scalar_t>
struct ForwardParams {
  int64_t state_size;
  const scalar_t* gates;  // (batch, saved), pre-activations
  CellsIn<scalar_t> old_cell;
  scalar_t* new_h;  // (batch, state_size)
  CellsOut<scalar_t> new_cell;
};

template <typename scalar_t>
struct BackwardParams {
  int64_t state_size;
  const scalar_t* grad_h;     // (batch, state_size), or null for zero
  const scalar_t* grad_cell;  // (batch, state_size), or null for zero
  const scalar_t* gates;      // (batch, saved), pre-activations
  const scalar_t* old_cell;   // (batch, state_size), or null for zero; not read by the LLTM
  const scalar_t* new_cell;   // (batch, state_size)
  scalar_t* d_gates;          // (batch, saved), or null if not wanted
  scalar_t* d_old_cell;       // (batch, state_size), or null if not wanted
};

template <typename scalar_t>
struct PointwiseKernels {
  /// For both, a task is a row of the batch.
  void (*forward)(const ForwardParams<scalar_t>& params, int64_t begin, int64_t end);
  void (*backward)(const BackwardParams<scalar_t>& params, int64_t begin, int64_t end);
};

/// [old_h | input], which is read in place and never concatenated.
template <typename scalar_t>
struct HAndInput {
  int64_t batch;
  int64_t state_size;
  int64_t input_features;
  const scalar_t* old_h;
  int64_t old_h_stride;
  const scalar_t* input;
  int64_t input_stride;
};

/// A block of weights, whose rows are those of gates.
template <typename scalar_t>
struct WeightBlock {
  const scalar_t* data;
  int64_t stride;  // between rows
};

/// The whole forward pass of a step: gates = [h | input] @ weights.T + bias, and the new state.
template <typename scalar_t>
struct CellParams {
  HAndInput<scalar_t> h_and_input;
  WeightBlock<scalar_t> weight_hh;  // (gates, state_size)
  WeightBlock<scalar_t> weight_ih;  // (gates, input_features)
  const scalar_t* bias;             // (gates), or null
  const scalar_t* bias_hh;          // (gates), or null: a second one, if the cell has two
  CellsIn<scalar_t> old_cell;
  scalar_t* gates;  // (batch, saved)
  scalar_t* new_h;  // (batch, state_size)
  CellsOut<scalar_t> new_cell;
  // h and input, transposed by pack_h_and_input() into panels of panel_vectors vectors of batch
  // rows; null if cell_needs_panels() is false.
  const accumulate_t<scalar_t>* panels = nullptr;
  int panel_vectors = 0;
};

/// Some columns of weights that are packed once for many rows.
template <typename scalar_t>
struct PackColumnsParams {
  const scalar_t* weights;  // (gates, columns), the first of these columns
  int64_t weights_stride;
  int64_t gates;
  int64_t columns;
  accumulate_t<scalar_t>* panels;  // of column_panel_size() each
};

template <typename scalar_t>
struct GateProductRow {
  const scalar_t* d_gates;  // (gates)
  scalar_t* out;            // (columns)
};

/// One of d_old_h and d_input: out = d_gates @ weights[:, some columns].
template <typename scalar_t>
struct GateProductParams {
  int64_t gates;
  int64_t columns;  // of weights and of out
  const GateProductRow<scalar_t>* rows;
  int64_t row_count;
  const scalar_t* weights;  // (gates, columns), the first of these columns
  int64_t weights_stride;
  int64_t row_chunks;  // number of chunks of rows; a task is a chunk and a panel of columns
  const accumulate_t<scalar_t>* panels;  // from pack_columns(), or null to copy from weights
};

/// A term of d_weights and d_bias, which are sums over rows.
template <typename scalar_t>
struct GradientRow {
  const scalar_t* d_gates;  // (gates)
  const scalar_t* old_h;    // (state_size)
  const scalar_t* input;    // (input_features)
};

/// Where one block of d_weights is written.
template <typename scalar_t>
struct GradientBlock {
  scalar_t* data;  // null if it is not wanted
  int64_t stride;  // between rows
};

/// d_weights = d_gates.T @ [old_h | input], in two blocks. More than max_rows_per_sum rows take
/// several calls.
template <typename scalar_t>
struct WeightGradientParams {
  int64_t gates;
  int64_t h_columns;      // state_size, or 0 if d_weight_hh is not wanted
  int64_t input_columns;  // input_features, or 0 if d_weight_ih is not wanted
  const GradientRow<scalar_t>* rows;
  int64_t row_count;
  bool is_first;                 // whether these are the first rows
  bool is_last;                  // whether these are the last rows
  accumulate_t<scalar_t>* sums;  // weight_sums_size(), of the previous rows; null for a single call
  GradientBlock<scalar_t> d_weight_hh;  // (gates, h_columns)
  GradientBlock<scalar_t> d_weight_ih;  // (gates, input_columns)
  int64_t panel_groups;                 // number of groups of the panels of columns
  accumulate_t<scalar_t>* panels;       // from first_panel on, each of weight_panel_size()
  int64_t first_panel;
};

/// d_bias = sum of d_gates over the rows, which may take several calls.
template <typename scalar_t>
struct BiasGradientParams {
  const GradientRow<scalar_t>* rows;
  int64_t row_count;
  bool is_first;                 // whether these are the first rows
  bool is_last;                  // whether these are the last rows
  accumulate_t<scalar_t>* sums;  // (gates), of the previous rows; null for a single call
  scalar_t* d_bias;              // (gates)
};

/// The rows of weights of all gates, packed once per sequence: the columns of h or of the input.
template <typename scalar_t>
struct PackGatesParams {
  const scalar_t* weights;  // (gates, terms), the first column of h or of the input
  int64_t weights_stride;
  int64_t state_size;
  int64_t terms;
  accumulate_t<scalar_t>* panels;  // of gate_panel_size(terms) each
};

/// A batch row at a step. A thread writes only the columns of its tasks.
template <typename scalar_t>
struct ForwardRow {
  const scalar_t* input;         // (input_features)
  const scalar_t* old_h;         // (state_size), after a reset if there is one
  accumulate_t<scalar_t>* z;     // (gate_row_size()), first z_x, then partial sums
  accumulate_t<scalar_t>* cell;  // (padded_state_size()), first old_cell, then new_cell
  scalar_t* new_h;               // (state_size)
  scalar_t* new_cell;            // (state_size), or null if not wanted
  scalar_t* gates;               // (saved), or null if not wanted
};

/// z = input @ W_x.T + bias, for the rows of several steps.
template <typename scalar_t>
struct InputGatesParams {
  int64_t state_size;
  int64_t input_features;
  const accumulate_t<scalar_t>* panels;  // of the columns of the input
  const scalar_t* bias;                  // (gates), or null
  const scalar_t* bias_hh;               // (gates), or null: a second one, if the cell has two
  const ForwardRow<scalar_t>* rows;
  int64_t row_count;
};

/// One step of the rows that run it: z += old_h @ W_h.T, and the new state.
template <typename scalar_t>
struct ForwardStepParams {
  int64_t state_size;
  const accumulate_t<scalar_t>* panels;  // of the columns of h
  const ForwardRow<scalar_t>* rows;
  int64_t row_count;
};

/// A batch row at a step of the backward pass.
template <typename scalar_t>
struct BackwardRow {
  const scalar_t* grad_output;  // (state_size), or null for zero
  const scalar_t* grad_cells;   // (state_size), or null for zero
  const scalar_t* gates;        // (saved), pre-activations
  const scalar_t* old_cell;     // (state_size), or null for zero; not read by the LLTM
  const accumulate_t<scalar_t>* exact_old_cell;  // in its place, if it is not rounded
  const scalar_t* new_cell;                      // (state_size)
  accumulate_t<scalar_t>* d_h;     // (padded_state_size()), of new_h, from the following step
  accumulate_t<scalar_t>* d_cell;  // (padded_state_size()), first of new_cell, then of old_cell
  scalar_t* d_gates;               // (gates), those that h takes
  scalar_t* d_inputs;              // (gates), those that the input takes, if they are others
  scalar_t* d_saved;               // (saved), or null if not wanted; likewise
};

/// d_h = d_gates @ W_h for the rows of the following step, then d_gates of this step's rows.
template <typename scalar_t>
struct BackwardStepParams {
  int64_t state_size;
  const accumulate_t<scalar_t>* panels;
  const BackwardRow<scalar_t>* product_rows;
  int64_t product_row_count;
  const BackwardRow<scalar_t>* rows;
  int64_t row_count;
};

template <typename scalar_t>
struct SequenceKernels {
  /// A single step, with ProductKernels::cell_tasks tasks. It reads the weights in place.
  void (*cell)(const CellParams<scalar_t>& params, int64_t begin, int64_t end);

  int64_t rows_per_tile;

  /// The forward pass. A task is a group of state indices, with all of their gates.
  int64_t (*groups)(int64_t state_size);
  int64_t (*gate_panel_size)(int64_t terms);
  int64_t (*gate_row_size)(int64_t state_size);
  void (*pack_gates)(const PackGatesParams<scalar_t>& params, int64_t begin, int64_t end);
  void (*input_gates)(const InputGatesParams<scalar_t>& params, int64_t begin, int64_t end);
  void (*forward_step)(const ForwardStepParams<scalar_t>& params, int64_t begin, int64_t end);

  /// The backward pass. A task is a panel of columns of W_h, packed by pack_columns().
  void (*backward_step)(const BackwardStepParams<scalar_t>& params, int64_t begin, int64_t end);

  /// The row size of a state that is carried in the accumulation type.
  int64_t (*padded_state_size)(int64_t state_size);
};

template <typename scalar_t>
struct ProductKernels {
  int64_t lanes;          // per vector
  int max_panel_vectors;  // largest panel_vectors of CellParams

  /// False for a small batch, which is multiplied row by row, without panels.
  bool (*cell_needs_panels)(int64_t batch);
  /// A task is a group of `lanes` columns of [h | input], in all panels.
  int64_t (*pack_tasks)(const HAndInput<scalar_t>& h_and_input);
  int64_t (*h_and_input_panels_size)(const HAndInput<scalar_t>& h_and_input);
  void (*pack_h_and_input)(const HAndInput<scalar_t>& h_and_input,
                           int panel_vectors,
                           accumulate_t<scalar_t>* panels,
                           int64_t begin,
                           int64_t end);
  /// A task is a group of `lanes` state indices, with all of their gates, for one panel.
  int64_t (*cell_tasks)(const CellParams<scalar_t>& params);

  /// A task is a panel of columns.
  int64_t (*column_panels)(int64_t columns);
  int64_t (*column_panel_size)(int64_t gates);
  void (*pack_columns)(const PackColumnsParams<scalar_t>& params, int64_t begin, int64_t end);

  /// A task is a panel of columns for a chunk of at most this many rows.
  int64_t max_rows_per_chunk;
  int64_t (*gate_product_tasks)(const GateProductParams<scalar_t>& params);
  void (*gate_product)(const GateProductParams<scalar_t>& params, int64_t begin, int64_t end);

  /// First pack_weight_panels(), where a task is a panel of columns, then weight_gradient(), where
  /// a task is a few rows of d_weights in a group of at most this many panels.
  int64_t max_panels_per_group;
  int64_t max_rows_per_sum;
  int64_t (*weight_sums_size)(const WeightGradientParams<scalar_t>& params);
  int64_t (*weight_panel_size)(const WeightGradientParams<scalar_t>& params);
  int64_t (*weight_panels)(const WeightGradientParams<scalar_t>& params);
  int64_t (*first_panel_of)(const WeightGradientParams<scalar_t>& params, int64_t group);
  void (*pack_weight_panels)(const WeightGradientParams<scalar_t>& params,
                             int64_t begin,
                             int64_t end);
  int64_t (*weight_gradient_tasks)(const WeightGradientParams<scalar_t>& params);
  void (*weight_gradient)(const WeightGradientParams<scalar_t>& params, int64_t begin, int64_t end);

  /// A task is a column of d_gates.
  void (*bias_gradient)(const BiasGradientParams<scalar_t>& params, int64_t begin, int64_t end);
};

/// The kernels for a list of types, and for each cell where its formula matters.
template <typename... scalars>
struct KernelsFor {
  std::array<std::tuple<PointwiseKernels<scalars>...>, kCellTypes> pointwise;
  std::tuple<ProductKernels<scalars>...> products;
  std::array<std::tuple<SequenceKernels<scalars>...>, kCellTypes> sequence;
};

/// All kernels for one instruction set.
using Kernels = KernelsFor<double, float, c10::Half, c10::BFloat16>;

/// The instruction sets that there are kernels for.
enum class InstructionSet {
  kBaseline,  // of every machine of the architecture: SSE2 or NEON
  kAvx2,      // with FMA
  kAvx512,
  kAvx512Bf16,  // with dot products of bfloat16
  kAvx512Amx,   // and with tile registers, which sequences use and the cell's kernels do not
};

/// The machine's instruction set, or a lower one if ATEN_CPU_CAPABILITY names it: avx512 means
/// AVX-512 without dot products of bfloat16.
InstructionSet instruction_set();

/// The kernels for instruction_set().
const Kernels& kernels();

const Kernels& baseline_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
/// For AVX-512 with dot products of bfloat16, and for AVX-512 that also has tile registers.
const KernelsFor<c10::BFloat16>& avx512_bfloat16_kernels();
const KernelsFor<c10::BFloat16>& amx_bfloat16_kernels();

}  // namespace lltm::cpu
