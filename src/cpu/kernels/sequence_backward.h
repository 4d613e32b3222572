// The steps of a sequence's backward pass: dz of a step from dh and dc, then dh = dz @ W_h, of the
// dz that h takes, for the previous step. A lane is a state index. A panel of kPanelWidth state
// indices needs the dh of no other panel, so a single task computes both for a panel.
#pragma once

#include "panel_product.h"
#include "pointwise.h"

namespace lltm::cpu {
namespace {

template <typename scalar_t>
int64_t padded_state_size(int64_t state_size) {
  return kPanelWidth<scalar_t> * column_panels<scalar_t>(state_size);
}

template <typename Cell, typename scalar_t>
void backward_step(const BackwardStepParams<scalar_t>& params, int64_t begin, int64_t end) {
  using A = Access<scalar_t>;
  using V = Simd<typename A::real>;
  constexpr int64_t width = kPanelWidth<scalar_t>;
  constexpr int vectors = kMaxVectors;
  const int64_t state_size = params.state_size;
  const int64_t gates = Cell::kGates * state_size;
  const int64_t depth = depth_of<scalar_t>(gates);
  const ProductRegisters<scalar_t> registers(params.product_row_count);
  for (int64_t panel = begin; panel < end; ++panel) {
    const int64_t first_column = panel * width;
    const auto d_h_of = [&](int64_t row, int v) {
      return params.product_rows[row].d_h + first_column + v * V::kLanes;
    };
    multiply_by_panel<scalar_t, vectors>(
        params.product_row_count,
        gates,
        params.panels + panel * depth * width,
        [&](int64_t row) { return params.product_rows[row].d_gates; },
        PanelSums{.start = [](int64_t /*row*/, int /*v*/) { return V(0); },
                  .partial = d_h_of,
                  .finish =
                      [&](int64_t row, const V(&d_h)[vectors]) {
                        for (int v = 0; v < vectors; ++v) {
                          d_h[v].store(d_h_of(row, v));
                        }
                      }});
    const int64_t last_column = smaller(first_column + width, state_size);
    for (int64_t r = 0; r < params.row_count; ++r) {
      const BackwardRow<scalar_t>& row = params.rows[r];
      for (int64_t column = first_column; column < last_column; column += V::kLanes) {
        const int64_t count = smaller(V::kLanes, last_column - column);
        V d_h = V::load(row.d_h + column);
        if (row.grad_output) {
          d_h = d_h + A::load(row.grad_output + column, count);
        }
        V d_cell = V::load(row.d_cell + column);
        if (row.grad_cells) {
          d_cell = d_cell + A::load(row.grad_cells + column, count);
        }
        V z[Cell::kSaved], d_z[Cell::kSaved];
        load_gates(row.gates + column, state_size, count, z);
        V old_cell(0);
        if (Cell::kCarriesH && row.exact_old_cell) {
          old_cell = V::load(row.exact_old_cell + column, count);
        } else if (Cell::kReadsOldCell && row.old_cell) {
          old_cell = A::load(row.old_cell + column, count);
        }
        const auto by = Cell::template derivatives<SimdMath>(
            z, old_cell, A::load(row.new_cell + column, count));
        Cell::backward(by, d_h, d_cell, d_z).store(row.d_cell + column);
        if constexpr (Cell::kAdds) {
          store_gates(d_z, row.d_gates + column, state_size, count);
          continue;
        }
        const auto store_side = [&](const auto& of, scalar_t* to) {
          for (const int k : of) {
            A::store(d_z[k], to + column, count);
            to += state_size;
          }
        };
        store_side(Cell::kOfGate, row.d_gates);
        store_side(Cell::kOfInput, row.d_inputs);
        if (row.d_saved) {
          store_gates(d_z, row.d_saved + column, state_size, count);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lltm::cpu
