// d_weights = d_gates.T @ states.
#pragma once

#include "packing.h"

namespace lltm::cpu {
namespace {

// Operands of the batch in a block; the panels of a group, so deep, stay in the second-level cache.
constexpr int64_t kWeightDepth = 2 * kDepth;
constexpr int64_t kMaxPanelsPerGroup = 8;

/// None for a single row, whose outer product is written without.
template <typename scalar_t>
int64_t weight_panels(const WeightGradientParams<scalar_t>& params) {
  return params.row_count == 1
             ? 0
             : ceil_div(params.state_size + params.input_features, kPanelWidth<scalar_t>);
}

template <typename scalar_t>
int64_t weight_panel_size(const WeightGradientParams<scalar_t>& params) {
  return kPanelWidth<scalar_t> * depth_of<scalar_t>(params.row_count);
}

/// Where the panels of a group begin.
template <typename scalar_t>
int64_t first_panel_of(const WeightGradientParams<scalar_t>& params, int64_t group) {
  return weight_panels(params) * group / params.panel_groups;
}

/// Panel p holds the columns from p*width on, as [operand][column in panel].
template <typename scalar_t>
void pack_weight_panels(const WeightGradientParams<scalar_t>& params, int64_t begin, int64_t end) {
  using O = Operand<scalar_t>;
  constexpr int64_t width = kPanelWidth<scalar_t>;
  const int64_t columns = params.state_size + params.input_features;
  for (int64_t panel = begin; panel < end; ++panel) {
    const int64_t first = panel * width;
    const int64_t last = smaller(first + width, columns);
    const int64_t boundary = clamp(params.state_size, first, last);
    // Where the panel has no column of one of them, its rows may be null, as those of no features.
    const int64_t first_of_h = boundary > first ? first : 0;
    const int64_t first_of_input = last > boundary ? boundary - params.state_size : 0;
    auto* to = params.panels + (panel - params.first_panel) * weight_panel_size(params);
    for (int64_t row = 0; row < params.row_count; row += O::kTerms, to += width) {
      const scalar_t* of_h[O::kTerms];
      next_rows([&](int64_t r) { return params.rows[r].old_h + first_of_h; },
                row,
                params.row_count,
                of_h);
      pack_across(of_h, boundary - first, to);
      const scalar_t* of_input[O::kTerms];
      next_rows([&](int64_t r) { return params.rows[r].input + first_of_input; },
                row,
                params.row_count,
                of_input);
      pack_across(of_input, last - boundary, to + (boundary - first));
      clear_columns(to, last - first, width);
    }
  }
}

// Rows of d_weights in a task: what a task reads of a row of d_gates should be whole cache lines.
constexpr int64_t kGatesPerTask = 8 * kRows;

template <typename scalar_t>
int64_t weight_gradient_tasks(const WeightGradientParams<scalar_t>& params) {
  return ceil_div(3 * params.state_size, kGatesPerTask) * params.panel_groups;
}

template <typename scalar_t>
void outer_product(const WeightGradientParams<scalar_t>& params, int64_t begin, int64_t end) {
  using A = Access<scalar_t>;
  using real = typename A::real;
  using V = Simd<real>;
  const int64_t last_gate = smaller(end * kGatesPerTask, 3 * params.state_size);
  scalar_t* out =
      params.d_weights + begin * kGatesPerTask * (params.state_size + params.input_features);
  for (int64_t gate = begin * kGatesPerTask; gate < last_gate; ++gate) {
    const V scalar(real(params.rows[0].d_gates[gate]));
    const auto write = [&](const scalar_t* from, int64_t columns) __attribute__((always_inline)) {
      int64_t column = 0;
      for (; column + V::kLanes <= columns; column += V::kLanes) {
        A::store(scalar * A::load(from + column, V::kLanes), out + column, V::kLanes);
      }
      if (column < columns) {
        A::store(scalar * A::load(from + column, columns - column), out + column, columns - column);
      }
      out += columns;
    };
    write(params.rows[0].old_h, params.state_size);
    write(params.rows[0].input, params.input_features);
  }
}

template <typename scalar_t>
void weight_gradient(const WeightGradientParams<scalar_t>& params, int64_t begin, int64_t end) {
  using O = Operand<scalar_t>;
  using real = typename O::real;
  constexpr int64_t width = kPanelWidth<scalar_t>;
  const int64_t gates = 3 * params.state_size;
  const int64_t columns = params.state_size + params.input_features;
  const int64_t depth = depth_of<scalar_t>(params.row_count);
  const int64_t tasks_per_group = ceil_div(gates, kGatesPerTask);
  if (params.row_count == 1) {
    outer_product(params, begin, end);
    return;
  }
  alignas(64) real d_gates[kGatesPerTask / kRows][kWeightDepth * kRows];
  alignas(64) real sums[kGatesPerTask][kMaxPanelsPerGroup * width];
  for (int64_t task = begin; task < end; ++task) {
    const int64_t first_gate = task % tasks_per_group * kGatesPerTask;
    const int64_t gate_count = smaller(kGatesPerTask, gates - first_gate);
    const int64_t tiles = ceil_div(gate_count, kRows);
    const int64_t group = task / tasks_per_group;
    const int64_t first_panel = first_panel_of(params, group);
    const int64_t last_panel = first_panel_of(params, group + 1);
    for (int64_t block = 0; block < depth; block += kWeightDepth) {
      const int64_t depth_here = smaller(kWeightDepth, depth - block);
      for (int64_t k = 0; k < depth_here; ++k) {
        const int64_t row = (block + k) * O::kTerms;
        real operands[kGatesPerTask] = {};
        const scalar_t* rows[O::kTerms];
        next_rows([&](int64_t r) { return params.rows[r].d_gates + first_gate; },
                  row,
                  params.row_count,
                  rows);
        pack_across(rows, gate_count, operands);
        for (int64_t tile = 0; tile < tiles; ++tile) {
          std::memcpy(d_gates[tile] + k * kRows, operands + tile * kRows, kRows * sizeof(real));
        }
      }
      // Tile by tile, so that rows of d_weights are written in long stretches; but where most
      // blocks write none, panel by panel, each of which then stays in the first-level cache.
      const bool is_deep = depth > 2 * kWeightDepth;
      const int64_t panels = last_panel - first_panel;
      for (int64_t outer = 0; outer < (is_deep ? panels : tiles); ++outer) {
        for (int64_t inner = 0; inner < (is_deep ? tiles : panels); ++inner) {
          const int64_t tile = is_deep ? inner : outer;
          const int64_t panel = first_panel + (is_deep ? outer : inner);
          const int64_t column = panel * width;
          const auto multiply_from =
              [&](int64_t k, VectorOf<scalar_t>(&tile_sums)[kRows][kMaxVectors])
                  __attribute__((always_inline)) {
                    const typename O::Scalar* a[kRows];
                    for (int r = 0; r < kRows; ++r) {
                      a[r] = reinterpret_cast<const typename O::Scalar*>(d_gates[tile] + k * kRows +
                                                                         r);
                    }
                    multiply<scalar_t, kRows>(smaller(kDepth, depth_here - k),
                                              a,
                                              params.panels +
                                                  (panel - params.first_panel) * width * depth +
                                                  (block + k) * width,
                                              width,
                                              tile_sums);
                  };
          typename O::Vector tile_sums[kRows][kMaxVectors];
          multiply_from(0, tile_sums);
          if (depth_here > kDepth) {  // kWeightDepth is twice that
            typename O::Vector more[kRows][kMaxVectors];
            multiply_from(kDepth, more);
            for (int r = 0; r < kRows; ++r) {
              for (int v = 0; v < kMaxVectors; ++v) {
                tile_sums[r][v] += more[r][v];
              }
            }
          }
          finish_block<scalar_t>(
              tile_sums,
              block == 0,
              block + depth_here == depth,
              &sums[tile * kRows][(panel - first_panel) * width],
              kMaxPanelsPerGroup * width,
              [&](int64_t r) {
                return params.d_weights + (first_gate + tile * kRows + r) * columns + column;
              },
              smaller(kRows, gate_count - tile * kRows),
              columns - column);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lltm::cpu
