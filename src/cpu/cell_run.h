// The whole forward pass of a cell, with the kernels of kernels/kernels.h.
#pragma once

#include "kernel_arguments.h"
#include "parallel.h"
#include "scratch.h"

#include <optional>

namespace lltm::cpu {

/// Packs the panels of `params` and computes gates, new_h and new_cell.
template <typename scalar_t>
void run_cell(CellParams<scalar_t> params) {
  const auto& kernels = product_kernels<scalar_t>();
  const auto& states = params.states;
  const int64_t work = multiplications(
      states.batch, 3 * states.state_size, states.state_size + states.input_features);
  std::optional<Scratch<accumulate_t<scalar_t>>> panels;
  params.panel_vectors = kernels.max_panel_vectors;
  if (kernels.cell_needs_panels(states.batch)) {
    const int64_t size = kernels.state_panels_size(states);
    panels.emplace(size);
    params.panels = panels->data();
    // Narrower panels make more tasks.
    const int64_t wanted = work < kShortMultiplications ? 1 : at::get_num_threads();
    while (params.panel_vectors > 1 && kernels.cell_tasks(params) < wanted) {
      --params.panel_vectors;
    }
    // The same number of panels, but of equal width.
    const int64_t vectors = ceil_div(states.batch, kernels.lanes);
    const int64_t panel_count = ceil_div(vectors, params.panel_vectors);
    params.panel_vectors = static_cast<int>(ceil_div(vectors, panel_count));
    for_each_task(kernels.pack_tasks(states), size, kShortCopies, [&](int64_t begin, int64_t end) {
      kernels.pack_states(states, params.panel_vectors, panels->data(), begin, end);
    });
  }
  for_each_task(
      kernels.cell_tasks(params), work, kShortMultiplications, [&](int64_t begin, int64_t end) {
        kernels.cell(params, begin, end);
      });
}

}  // namespace lltm::cpu
