// The results of a sequence, on every device.
#pragma once

#include "checks.h"

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <tuple>

namespace lltm {

/// Contiguous tensors. cells and gates have no steps if they are not kept. If the state that is
/// carried is h itself, then it is c_n, and h_n and cells are undefined.
struct SequenceOutputs {
  at::Tensor output, h_n, c_n, cells, gates;

  bool keep() const { return gates.size(0) > 0; }

  template <typename Arguments>
  auto results() const {
    if constexpr (Arguments::kCell.carries_h) {
      return std::tuple{output, c_n, gates};
    } else {
      return std::tuple{output, h_n, c_n, cells, gates};
    }
  }
};

/// Allocates the results by empty(shape, dtype).
template <typename Arguments, typename Size, typename Empty>
SequenceOutputs empty_outputs(const Arguments& arguments,
                              const SequenceSizes<Size>& sizes,
                              bool keep,
                              const Empty& empty) {
  using Shape = c10::ArrayRef<Size>;
  constexpr const CellDescriptor& kCell = Arguments::kCell;
  const auto& [steps, batch, input_features, state_size, gates] = sizes;
  const Size saved = state_size * Size(kCell.saved);
  const auto dtype = arguments.input.scalar_type();
  const Size kept_steps = keep ? steps : Size(0);
  return {
      .output = empty(Shape{steps, batch, state_size}, dtype),
      .h_n = kCell.carries_h ? at::Tensor() : empty(Shape{batch, state_size}, dtype),
      .c_n = empty(Shape{batch, state_size}, final_cell_dtype(arguments)),
      .cells = kCell.carries_h ? at::Tensor() : empty(Shape{kept_steps, batch, state_size}, dtype),
      .gates = empty(Shape{kept_steps, batch, saved}, dtype)};
}

}  // namespace lltm
