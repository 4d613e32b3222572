// The results of lltm::sequence or lltm::lstm, on every device.
#pragma once

#include "checks.h"

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <tuple>

namespace lltm {

/// Contiguous tensors. cells and gates have no steps if they are not kept.
struct SequenceOutputs {
  at::Tensor output, h_n, c_n, cells, gates;

  std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> results() const {
    return {output, h_n, c_n, cells, gates};
  }
};

/// Allocates the results by empty(shape, dtype).
template <typename Arguments, typename Size, typename Empty>
SequenceOutputs empty_outputs(const Arguments& arguments,
                              const SequenceSizes<Size>& sizes,
                              bool keep,
                              const Empty& empty) {
  using Shape = c10::ArrayRef<Size>;
  const auto& [steps, batch, input_features, state_size, gates] = sizes;
  const auto dtype = arguments.input.scalar_type();
  const Size kept_steps = keep ? steps : Size(0);
  return {.output = empty(Shape{steps, batch, state_size}, dtype),
          .h_n = empty(Shape{batch, state_size}, dtype),
          .c_n = empty(Shape{batch, state_size}, final_cell_dtype(arguments)),
          .cells = empty(Shape{kept_steps, batch, state_size}, dtype),
          .gates = empty(Shape{kept_steps, batch, gates}, dtype)};
}

}  // namespace lltm
