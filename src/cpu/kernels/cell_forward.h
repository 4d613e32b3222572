// The whole forward pass: gates = [h | input] @ weights.T + bias, and the new state, computed from
// the gates while they are in the cache.
#pragma once

#include "cell_panel.h"
#include "cell_rowwise.h"

namespace lltm::cpu {
namespace {

template <typename scalar_t>
bool cell_needs_panels(int64_t batch) {
  return batch > kLargestRowwiseBatch<scalar_t>;
}

template <typename scalar_t>
int64_t cell_tasks(const CellParams<scalar_t>& params) {
  constexpr int64_t lanes = Simd<accumulate_t<scalar_t>>::kLanes;
  const int64_t groups = ceil_div(params.h_and_input.state_size, lanes);
  return params.panels ? groups * ceil_div(params.h_and_input.batch, params.panel_vectors * lanes)
                       : groups;
}

template <typename Cell, typename scalar_t>
void cell_forward(const CellParams<scalar_t>& params, int64_t begin, int64_t end) {
  using real = accumulate_t<scalar_t>;
  using V = Simd<real>;
  const HAndInput<scalar_t>& h_and_input = params.h_and_input;
  const int64_t width = params.panels ? params.panel_vectors * V::kLanes : h_and_input.batch;
  const int64_t panels = ceil_div(h_and_input.batch, width);
  for (int64_t task = begin; task < end; ++task) {
    // Neighboring tasks share rows of weights.
    const int64_t index = task / panels * V::kLanes;
    const int64_t count = smaller(V::kLanes, h_and_input.state_size - index);
    if (!params.panels) {
      cell_rowwise<Cell>(params, index, count);
      continue;
    }
    const int64_t row = task % panels * width;
    const int64_t rows = smaller(width, h_and_input.batch - row);
    const real* panel = params.panels + row * depth_of_h_and_input(h_and_input);
    with_constant<kMaxVectors>(ceil_div(rows, V::kLanes), [&]<int vectors>() {
      cell_panel<Cell, vectors>(params, panel, row, rows, index, count);
    });
  }
}

}  // namespace
}  // namespace lltm::cpu
