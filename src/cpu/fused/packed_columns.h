// Columns of weights that are packed once and then multiplied with many rows.
#pragma once

#include "../kernel_arguments.h"
#include "../parallel.h"
#include "../scratch.h"
#include "arrays.h"

namespace lltm::cpu {

template <typename scalar_t>
Scratch<accumulate_t<scalar_t>> pack_columns(const WeightColumns<scalar_t>& weights,
                                             int64_t gates) {
  const auto& kernels = product_kernels<scalar_t>();
  const int64_t panels = kernels.column_panels(weights.columns);
  Scratch<accumulate_t<scalar_t>> packed(panels * kernels.column_panel_size(gates));
  for_each_task(panels, gates * weights.columns, kShortCopies, [&](int64_t begin, int64_t end) {
    kernels.pack_columns({.weights = weights.data,
                          .weights_stride = weights.stride,
                          .gates = gates,
                          .columns = weights.columns,
                          .panels = packed.data()},
                         begin,
                         end);
  });
  return packed;
}

}  // namespace lltm::cpu
