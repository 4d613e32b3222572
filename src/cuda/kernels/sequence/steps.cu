#include "../../../cell.h"
#include "../../ptx/overlap.cuh"
#include "../elementwise.cuh"
#include "kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace lltm::cuda {
namespace {

template <typename scalar_t>
__global__ void __launch_bounds__(kElementThreads)
    sequence_step_kernel(const __grid_constant__ SequenceStepParams<scalar_t> params) {
  using acc_t = accumulate_t<scalar_t>;
  wait_for_previous_kernel();
  const int64_t state_size = params.state_size;
  for_each_element(params.rows, state_size, [&](int64_t row, int64_t column) {
    const int64_t index = row * state_size + column;
    const int64_t of_gates = row * 3 * state_size + column;
    scalar_t h = params.h[index];
    acc_t cell = params.cell[index];
    if (params.t != kNoTime) {
      scalar_t output = 0, new_cell = 0, gates[3] = {0, 0, 0};
      if (params.rows_of_sequence.runs(row, params.t)) {
        const auto z = [&](int gate) {
          const int64_t offset = of_gates + gate * state_size;
          const acc_t bias = params.bias != nullptr
                                 ? static_cast<acc_t>(params.bias[gate * state_size + column])
                                 : acc_t(0);
          return params.z_input[offset] + params.z_h[offset] + bias;
        };
        const cell::Gates<acc_t> of_cell{z(0), z(1), z(2)};
        const auto state = cell::forward<cell::StandardMath>(of_cell, cell);
        cell = state.cell;
        h = output = static_cast<scalar_t>(state.h);
        new_cell = static_cast<scalar_t>(state.cell);
        gates[0] = static_cast<scalar_t>(of_cell.input_gate);
        gates[1] = static_cast<scalar_t>(of_cell.output_gate);
        gates[2] = static_cast<scalar_t>(of_cell.candidate);
      }
      params.output[index] = output;
      if (params.cells != nullptr) {
        params.cells[index] = new_cell;
        for (int gate = 0; gate < 3; ++gate) {
          params.gates[of_gates + gate * state_size] = gates[gate];
        }
      }
    }
    if (params.next_t != kNoTime && params.rows_of_sequence.is_reset(row, params.next_t) &&
        params.rows_of_sequence.runs(row, params.next_t)) {
      h = 0;
      cell = 0;
    }
    params.h[index] = h;
    params.cell[index] = cell;
  });
}

template <typename scalar_t>
__global__ void __launch_bounds__(kElementThreads)
    sequence_start_kernel(const __grid_constant__ SequenceStartParams<scalar_t> params) {
  wait_for_previous_kernel();
  for_each_element(params.rows, params.state_size, [&](int64_t row, int64_t column) {
    const auto& rows = params.rows_of_sequence;
    const int64_t index = row * params.state_size + column;
    int64_t first = 0;
    if (params.reverse) {
      first =
          (rows.lengths == nullptr ? params.steps
                                   : min(rows.lengths[row * rows.lengths_stride], params.steps)) -
          1;
    }
    const bool runs = first >= 0 && rows.runs(row, first);
    scalar_t h = 0;
    float cell = 0;
    if (!runs || !rows.is_reset(row, first)) {
      if (params.h0.data != nullptr) {
        h = params.h0.at(0, row, column);
      }
      if (params.c0_float.data != nullptr) {
        cell = params.c0_float.at(0, row, column);
      } else if (params.c0.data != nullptr) {
        cell = static_cast<float>(params.c0.at(0, row, column));
      }
    }
    for (scalar_t* const to : params.h) {
      if (to != nullptr) {
        to[row * params.h_stride + column] = h;
      }
    }
    if (params.cell != nullptr) {
      params.cell[index] = cell;
    }
    if (!runs) {
      params.h_n[index] = h;
    }
  });
}

}  // namespace

template <typename scalar_t>
cudaError_t launch_sequence_step(const SequenceStepParams<scalar_t>& params, cudaStream_t stream) {
  return launch_on_elements<&sequence_step_kernel<scalar_t>>(
      params, params.rows * params.state_size, stream);
}

template <typename scalar_t>
cudaError_t launch_sequence_start(const SequenceStartParams<scalar_t>& params,
                                  cudaStream_t stream) {
  return launch_on_elements<&sequence_start_kernel<scalar_t>>(
      params, params.rows * params.state_size, stream);
}

#define LLTM_INSTANTIATE(scalar_t) \
  template cudaError_t launch_sequence_step(const SequenceStepParams<scalar_t>&, cudaStream_t);
LLTM_INSTANTIATE(double)
LLTM_INSTANTIATE(float)
LLTM_INSTANTIATE(c10::Half)
LLTM_INSTANTIATE(c10::BFloat16)
#undef LLTM_INSTANTIATE
template cudaError_t launch_sequence_start(const SequenceStartParams<float>&, cudaStream_t);
template cudaError_t launch_sequence_start(const SequenceStartParams<c10::Half>&, cudaStream_t);
template cudaError_t launch_sequence_start(const SequenceStartParams<c10::BFloat16>&, cudaStream_t);

}  // namespace lltm::cuda
