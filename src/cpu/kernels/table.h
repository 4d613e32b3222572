// The kernels of one instruction set. The file that includes this one
//  - first includes kernels.h and the standard headers that are used here,
//  - then selects the instruction set by `#pragma GCC target`, so that no inline function of a
//    header is compiled for it and then picked by the linker for a lesser machine,
//  - then defines LLTM_SIMD_BYTES, and at its end the function that returns make_kernels().
#pragma once

#include "../../cell/gru.h"
#include "../../cell/lltm.h"
#include "../../cell/lstm.h"
#include "bias_gradient.h"
#include "cell_forward.h"
#include "gate_product.h"
#include "pointwise.h"
#include "sequence_backward.h"
#include "sequence_forward.h"
#include "weight_gradient.h"

namespace lltm::cpu {
namespace {

template <typename Cell, typename scalar_t>
constexpr PointwiseKernels<scalar_t> make_pointwise_kernels() {
  return {forward_rows<Cell, scalar_t>, backward_rows<Cell, scalar_t>};
}

template <typename scalar_t>
constexpr ProductKernels<scalar_t> make_product_kernels() {
  return {
      .lanes = Simd<accumulate_t<scalar_t>>::kLanes,
      .max_panel_vectors = kMaxVectors,
      .cell_needs_panels = cell_needs_panels<scalar_t>,
      .pack_tasks = pack_tasks<scalar_t>,
      .h_and_input_panels_size = h_and_input_panels_size<scalar_t>,
      .pack_h_and_input = pack_h_and_input<scalar_t>,
      .cell_tasks = cell_tasks<scalar_t>,
      .column_panels = column_panels<scalar_t>,
      .column_panel_size = column_panel_size<scalar_t>,
      .pack_columns = pack_columns<scalar_t>,
      .max_rows_per_chunk = kMaxRowsPerChunk,
      .gate_product_tasks = gate_product_tasks<scalar_t>,
      .gate_product = gate_product<scalar_t>,
      .max_panels_per_group = kMaxPanelsPerGroup,
      .max_rows_per_sum = kMaxRowsPerSum<scalar_t>,
      .weight_sums_size = weight_sums_size<scalar_t>,
      .weight_panel_size = weight_panel_size<scalar_t>,
      .weight_panels = weight_panels<scalar_t>,
      .first_panel_of = first_panel_of<scalar_t>,
      .pack_weight_panels = pack_weight_panels<scalar_t>,
      .weight_gradient_tasks = weight_gradient_tasks<scalar_t>,
      .weight_gradient = weight_gradient<scalar_t>,
      .bias_gradient = bias_gradient<scalar_t>,
  };
}

template <typename Cell, typename scalar_t>
constexpr SequenceKernels<scalar_t> make_sequence_kernels() {
  return {
      .cell = cell_forward<Cell, scalar_t>,
      .rows_per_tile = kAccumulators / Cell::kGates,
      .groups = groups<scalar_t>,
      .gate_panel_size = gate_panel_size<Cell, scalar_t>,
      .gate_row_size = gate_row_size<Cell, scalar_t>,
      .pack_gates = pack_gates<Cell, scalar_t>,
      .input_gates = input_gates<Cell, scalar_t>,
      .forward_step = forward_step<Cell, scalar_t>,
      .backward_step = backward_step<Cell, scalar_t>,
      .padded_state_size = padded_state_size<scalar_t>,
  };
}

template <typename... scalars>
constexpr KernelsFor<scalars...> make_kernels(KernelsFor<scalars...>) {
  using cell::Lltm, cell::Lstm, cell::Gru;
  static_assert(kCellTypes == 3, "both tables have a row for every cell");
  return {.pointwise = {{{make_pointwise_kernels<Lltm, scalars>()...},
                         {make_pointwise_kernels<Lstm, scalars>()...},
                         {make_pointwise_kernels<Gru, scalars>()...}}},
          .products = {make_product_kernels<scalars>()...},
          .sequence = {{{make_sequence_kernels<Lltm, scalars>()...},
                        {make_sequence_kernels<Lstm, scalars>()...},
                        {make_sequence_kernels<Gru, scalars>()...}}}};
}

}  // namespace
}  // namespace lltm::cpu
