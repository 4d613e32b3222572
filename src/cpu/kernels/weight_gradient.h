// d_weights = d_gates.T @ [old_h | input], in two blocks.
#pragma once

#include "gate_tiles.h"
#include "pointwise.h"

namespace lltm::cpu {
namespace {

// The panels of a group, kWeightDepth deep, stay in the L2 cache.
constexpr int64_t kMaxPanelsPerGroup = 8;

template <typename scalar_t>
constexpr int64_t kMaxRowsPerSum = kWeightDepth * Operand<scalar_t>::kTerms;

/// Whether there is only a single row. Its outer product is written without panels.
template <typename scalar_t>
bool is_outer_product(const WeightGradientParams<scalar_t>& params) {
  return params.row_count == 1 && params.is_first && params.is_last;
}

template <typename scalar_t>
int64_t weight_panels(const WeightGradientParams<scalar_t>& params) {
  return is_outer_product(params)
             ? 0
             : ceil_div(params.h_columns + params.input_columns, kPanelWidth<scalar_t>);
}

template <typename scalar_t>
int64_t weight_panel_depth(const WeightGradientParams<scalar_t>& params) {
  using Tiles = GateTiles<scalar_t>;
  return ceil_div(depth_of<scalar_t>(params.row_count), Tiles::kOperandsAtOnce) *
         Tiles::kOperandsAtOnce;
}

template <typename scalar_t>
int64_t weight_panel_size(const WeightGradientParams<scalar_t>& params) {
  return kPanelWidth<scalar_t> * weight_panel_depth(params);
}

template <typename scalar_t>
int64_t weight_sums_stride(const WeightGradientParams<scalar_t>& params) {
  return kPanelWidth<scalar_t> * weight_panels(params);
}

template <typename scalar_t>
int64_t weight_sums_size(const WeightGradientParams<scalar_t>& params) {
  constexpr int64_t gates_per_task = GateTiles<scalar_t>::kGatesPerTask;
  return ceil_div(params.gates, gates_per_task) * gates_per_task * weight_sums_stride(params);
}

/// The first panel of a group.
template <typename scalar_t>
int64_t first_panel_of(const WeightGradientParams<scalar_t>& params, int64_t group) {
  return weight_panels(params) * group / params.panel_groups;
}

/// Panel p holds the columns from p*width on, as [operand][column in panel].
template <typename scalar_t>
void pack_weight_panels(const WeightGradientParams<scalar_t>& params, int64_t begin, int64_t end) {
  using O = Operand<scalar_t>;
  constexpr int64_t width = kPanelWidth<scalar_t>;
  const int64_t columns = params.h_columns + params.input_columns;
  for (int64_t panel = begin; panel < end; ++panel) {
    const int64_t first = panel * width;
    const int64_t last = smaller(first + width, columns);
    const int64_t boundary = clamp(params.h_columns, first, last);
    // If the panel has no columns of h or of input, its rows may be null, as with no features.
    const int64_t first_of_h = boundary > first ? first : 0;
    const int64_t first_of_input = last > boundary ? boundary - params.h_columns : 0;
    auto* to = params.panels + (panel - params.first_panel) * weight_panel_size(params);
    for (int64_t row = 0; row < params.row_count; row += O::kTerms, to += width) {
      const scalar_t* h_rows[O::kTerms];
      next_rows([&](int64_t r) { return params.rows[r].old_h + first_of_h; },
                row,
                params.row_count,
                h_rows);
      pack_across(h_rows, boundary - first, to);
      const scalar_t* input_rows[O::kTerms];
      next_rows([&](int64_t r) { return params.rows[r].input + first_of_input; },
                row,
                params.row_count,
                input_rows);
      pack_across(input_rows, last - boundary, to + (boundary - first));
      clear_columns(to, last - first, width);
    }
    const int64_t padding = weight_panel_depth(params) - depth_of<scalar_t>(params.row_count);
    clear_columns(to, 0, padding * width);
  }
}

template <typename scalar_t>
int64_t weight_gradient_tasks(const WeightGradientParams<scalar_t>& params) {
  return ceil_div(params.gates, GateTiles<scalar_t>::kGatesPerTask) * params.panel_groups;
}

template <typename scalar_t>
void outer_product(const WeightGradientParams<scalar_t>& params, int64_t begin, int64_t end) {
  using A = Access<scalar_t>;
  using real = typename A::real;
  using V = Simd<real>;
  constexpr int64_t gates_per_task = GateTiles<scalar_t>::kGatesPerTask;
  const int64_t last_gate = smaller(end * gates_per_task, params.gates);
  for (int64_t gate = begin * gates_per_task; gate < last_gate; ++gate) {
    const V scalar(real(params.rows[0].d_gates[gate]));
    const auto write = [&](const scalar_t* from,
                           const GradientBlock<scalar_t>& block,
                           int64_t columns) __attribute__((always_inline)) {
      scalar_t* out = block.data + gate * block.stride;
      int64_t column = 0;
      for (; column + V::kLanes <= columns; column += V::kLanes) {
        A::store(scalar * A::load(from + column, V::kLanes), out + column, V::kLanes);
      }
      if (column < columns) {
        A::store(scalar * A::load(from + column, columns - column), out + column, columns - column);
      }
    };
    write(params.rows[0].old_h, params.d_weight_hh, params.h_columns);
    write(params.rows[0].input, params.d_weight_ih, params.input_columns);
  }
}

/// The columns of a panel in d_weights: of one block, or of both.
template <typename scalar_t>
class PanelOfGradient {
  static constexpr int64_t kWidth = kPanelWidth<scalar_t>;

 public:
  LLTM_INLINE PanelOfGradient(const WeightGradientParams<scalar_t>& params, int64_t panel)
      : params_(params),
        first_(panel * kWidth),
        columns_(smaller(kWidth, params.h_columns + params.input_columns - first_)) {
    const auto& hh = params.d_weight_hh;
    const auto& ih = params.d_weight_ih;
    const bool one_matrix = ih.data == hh.data + params.h_columns && ih.stride == hh.stride;
    if (first_ >= params.h_columns) {
      block_ = {ih.data + (first_ - params.h_columns), ih.stride};
    } else if (first_ + columns_ <= params.h_columns || one_matrix) {
      block_ = {hh.data + first_, hh.stride};
    }
  }

  LLTM_INLINE int64_t columns() const { return columns_; }

  /// Calls finish(out_row), which writes the rows from `gate` on to out_row(r) if they are the last
  /// of the sum.
  template <int64_t height, typename Finish>
  LLTM_INLINE void write(int64_t gate, int64_t rows, const Finish& finish) const {
    if (block_.data || !params_.is_last) {
      finish([&](int64_t r) { return block_.data + (gate + r) * block_.stride; });
      return;
    }
    scalar_t copy[height][kWidth];
    finish([&](int64_t r) { return copy[r]; });
    const auto& hh = params_.d_weight_hh;
    const auto& ih = params_.d_weight_ih;
    const int64_t h_columns = params_.h_columns - first_;
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(hh.data + (gate + r) * hh.stride + first_, copy[r], h_columns * sizeof(scalar_t));
      std::memcpy(ih.data + (gate + r) * ih.stride,
                  copy[r] + h_columns,
                  (columns_ - h_columns) * sizeof(scalar_t));
    }
  }

 private:
  const WeightGradientParams<scalar_t>& params_;
  const int64_t first_;
  const int64_t columns_;
  GradientBlock<scalar_t> block_{nullptr, 0};  // of the panel, if it is in one
};

template <typename scalar_t>
void weight_gradient(const WeightGradientParams<scalar_t>& params, int64_t begin, int64_t end) {
  using Tiles = GateTiles<scalar_t>;
  constexpr int64_t width = kPanelWidth<scalar_t>;
  if (is_outer_product(params)) {
    outer_product(params, begin, end);
    return;
  }
  const int64_t panel_size = weight_panel_size(params);
  const int64_t tasks_per_group = ceil_div(params.gates, Tiles::kGatesPerTask);
  const int64_t sums_stride = weight_sums_stride(params);
  Tiles d_gates;
  for (int64_t task = begin; task < end; ++task) {
    const int64_t first_gate = task % tasks_per_group * Tiles::kGatesPerTask;
    const int64_t gate_count = smaller(Tiles::kGatesPerTask, params.gates - first_gate);
    const int64_t tiles = ceil_div(gate_count, Tiles::kHeight);
    const int64_t group = task / tasks_per_group;
    const int64_t first_panel = first_panel_of(params, group);
    const int64_t panels = first_panel_of(params, group + 1) - first_panel;
    d_gates.pack(params, first_gate, gate_count);
    // Tile by tile, so that rows of d_weights are written in long segments; but panel by panel if
    // most sums are partial, so that a panel stays in a nearer cache.
    const bool is_partial = !(params.is_first && params.is_last);
    for (int64_t outer = 0; outer < (is_partial ? panels : tiles); ++outer) {
      for (int64_t inner = 0; inner < (is_partial ? tiles : panels); ++inner) {
        const int64_t tile = is_partial ? inner : outer;
        const int64_t panel = first_panel + (is_partial ? outer : inner);
        const int64_t gate = first_gate + tile * Tiles::kHeight;
        alignas(64) VectorOf<scalar_t> sums[Tiles::kHeight][kMaxVectors];
        d_gates.multiply(tile, params.panels + (panel - params.first_panel) * panel_size, sums);
        const int64_t rows = smaller(Tiles::kHeight, first_gate + gate_count - gate);
        const PanelOfGradient<scalar_t> out(params, panel);
        out.template write<Tiles::kHeight>(gate, rows, [&](const auto& out_row) {
          finish_block<scalar_t>(
              sums,
              params.is_first,
              params.is_last,
              is_partial ? params.sums + gate * sums_stride + panel * width : nullptr,
              sums_stride,
              out_row,
              rows,
              out.columns());
        });
      }
    }
  }
}

}  // namespace
}  // namespace lltm::cpu
