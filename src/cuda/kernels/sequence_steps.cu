#include "../../cell.h"
#include "../ptx/overlap.cuh"
#include "elementwise.cuh"
#include "sequence_kernels.h"

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

}  // namespace

template <typename scalar_t>
cudaError_t launch_sequence_step(const SequenceStepParams<scalar_t>& params, cudaStream_t stream) {
  return launch_on_elements<&sequence_step_kernel<scalar_t>>(
      params, params.rows * params.state_size, stream);
}

#define LLTM_INSTANTIATE(scalar_t) \
  template cudaError_t launch_sequence_step(const SequenceStepParams<scalar_t>&, cudaStream_t);
LLTM_INSTANTIATE(double)
LLTM_INSTANTIATE(float)
LLTM_INSTANTIATE(c10::Half)
LLTM_INSTANTIATE(c10::BFloat16)
#undef LLTM_INSTANTIATE

}  // namespace lltm::cuda
