// d_gates of a cell, or of a sequence of one step, by their kernel.
#pragma once

#include "../cell/accumulate.h"
#include "kernels/backward/kernels.h"
#include "runtime/device.h"
#include "runtime/launch_check.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

namespace lltm::cuda {

/// Computes d_gates, d_old_cell and d_bias. If `later` is not null, it receives the parts of d_bias
/// instead. The returned memory must live until these are added.
template <typename Cell, typename scalar_t>
at::Tensor compute_gate_gradients(GateGradientsParams<scalar_t> params,
                                  BiasParts* later,
                                  const Device& device) {
  at::Tensor workspace;
  params.sums_bias = later == nullptr;
  if (const int64_t parts = bias_parts(params);
      parts > 1 && params.template biases<Cell>().wanted()) {
    workspace = device.empty({parts, Cell::kSaved * params.state_size},
                             c10::CppTypeToScalarType<accumulate_t<scalar_t>>::value);
    params.workspace = workspace.mutable_data_ptr();
    if (later != nullptr) {
      *later = {static_cast<const float*>(params.workspace), parts, params.d_bias};
    }
  }
  check_launch(launch_gate_gradients<Cell>(params, device.stream()));
  return workspace;
}

}  // namespace lltm::cuda
