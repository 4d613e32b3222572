#include "../../cell.h"
#include "../ptx/overlap.cuh"
#include "elementwise.cuh"
#include "sequence_gradients.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace lltm::cuda {
namespace {

template <typename scalar_t>
__global__ void __launch_bounds__(kElementThreads)
    sequence_gradients_kernel(const __grid_constant__ SequenceGradientsParams<scalar_t> params) {
  using acc_t = accumulate_t<scalar_t>;
  wait_for_previous_kernel();
  const int64_t state_size = params.state_size;
  for_each_element(params.rows, state_size, [&](int64_t row, int64_t column) {
    const int64_t index = row * state_size + column;
    const auto& rows = params.rows_of_sequence;
    acc_t d_h = params.d_h[index];
    if (params.last_t != kNoTime && rows.runs(row, params.last_t)) {
      d_h = rows.is_reset(row, params.last_t) ? acc_t(0) : params.from_h[index];
      params.d_h[index] = d_h;
    }
    if (params.t == kNoTime) {
      return;
    }
    cell::Gates<acc_t> d_gates{0, 0, 0};
    const int64_t of_gates = row * 3 * state_size + column;
    if (rows.runs(row, params.t)) {
      acc_t d_cell = params.d_cell[index];
      if (params.grad_output.data != nullptr) {
        d_h += static_cast<acc_t>(params.grad_output.at(params.t, row, column));
      }
      if (params.grad_cells.data != nullptr) {
        d_cell += static_cast<acc_t>(params.grad_cells.at(params.t, row, column));
      }
      const scalar_t* gates = params.gates + of_gates;
      const cell::Gates<acc_t> z{static_cast<acc_t>(gates[0]),
                                 static_cast<acc_t>(gates[state_size]),
                                 static_cast<acc_t>(gates[2 * state_size])};
      const auto gradients = cell::backward<cell::StandardMath>(
          z, static_cast<acc_t>(params.cells[index]), d_h, d_cell);
      d_gates = gradients.gates;
      params.d_cell[index] = rows.is_reset(row, params.t) ? acc_t(0) : gradients.old_cell;
    }
    scalar_t* const to = params.d_gates + of_gates;
    to[0] = static_cast<scalar_t>(d_gates.input_gate);
    to[state_size] = static_cast<scalar_t>(d_gates.output_gate);
    to[2 * state_size] = static_cast<scalar_t>(d_gates.candidate);
  });
}

template <typename scalar_t>
__global__ void __launch_bounds__(kElementThreads)
    old_states_kernel(const __grid_constant__ OldStatesParams<scalar_t> params) {
  wait_for_previous_kernel();
  for_each_element(
      params.steps * params.rows, params.state_size, [&](int64_t step, int64_t column) {
        const int64_t t = step / params.rows, row = step - t * params.rows;
        const auto& rows = params.rows_of_sequence;
        const int64_t before = params.reverse ? t + 1 : t - 1;
        const bool is_first = before < 0 || before >= params.steps || !rows.runs(row, before);
        scalar_t h = 0;
        if (rows.runs(row, t) && !rows.is_reset(row, t)) {
          if (!is_first) {
            h = params.output.at(before, row, column);
          } else if (params.h0.data != nullptr) {
            h = params.h0.at(0, row, column);
          }
        }
        params.old_h[step * params.state_size + column] = h;
      });
}

}  // namespace

template <typename scalar_t>
cudaError_t launch_sequence_gradients(const SequenceGradientsParams<scalar_t>& params,
                                      cudaStream_t stream) {
  return launch_on_elements<&sequence_gradients_kernel<scalar_t>>(
      params, params.rows * params.state_size, stream);
}

template <typename scalar_t>
cudaError_t launch_old_states(const OldStatesParams<scalar_t>& params, cudaStream_t stream) {
  return launch_on_elements<&old_states_kernel<scalar_t>>(
      params, params.steps * params.rows * params.state_size, stream);
}

#define LLTM_INSTANTIATE(scalar_t)                                                         \
  template cudaError_t launch_sequence_gradients(const SequenceGradientsParams<scalar_t>&, \
                                                 cudaStream_t);                            \
  template cudaError_t launch_old_states(const OldStatesParams<scalar_t>&, cudaStream_t);
LLTM_INSTANTIATE(double)
LLTM_INSTANTIATE(float)
LLTM_INSTANTIATE(c10::Half)
LLTM_INSTANTIATE(c10::BFloat16)
#undef LLTM_INSTANTIATE

}  // namespace lltm::cuda
