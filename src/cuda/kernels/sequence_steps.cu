#include "../../cell.h"
#include "../ptx/overlap.cuh"
#include "../runtime/launch.cuh"
#include "sequence_kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>

namespace lltm::cuda {
namespace {

constexpr int kThreads = 256;

// function(row, column) of every element, in a grid-stride loop, so that any number fits the grid.
template <typename Function>
__device__ __forceinline__ void for_each_element(int64_t rows,
                                                 int64_t columns,
                                                 const Function& function) {
  const int64_t elements = rows * columns;
  const int64_t step = int64_t(gridDim.x) * kThreads;
  for (int64_t index = int64_t(blockIdx.x) * kThreads + threadIdx.x; index < elements;
       index += step) {
    const int64_t row = index / columns;
    function(row, index - row * columns);
  }
}

template <auto kKernel, typename Params>
cudaError_t launch_on_elements(const Params& params, int64_t elements, cudaStream_t stream) {
  constexpr int64_t kMaxBlocks = 1 << 16;
  const int64_t blocks = std::min((elements + kThreads - 1) / kThreads, kMaxBlocks);
  return launch_in_clusters<kKernel, kThreads, 0, 0>(
      params, dim3(static_cast<unsigned>(blocks)), 1, stream);
}

template <typename scalar_t>
__global__ void __launch_bounds__(kThreads)
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
__global__ void __launch_bounds__(kThreads)
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
__global__ void __launch_bounds__(kThreads)
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
cudaError_t launch_sequence_step(const SequenceStepParams<scalar_t>& params, cudaStream_t stream) {
  return launch_on_elements<&sequence_step_kernel<scalar_t>>(
      params, params.rows * params.state_size, stream);
}

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

#define LLTM_INSTANTIATE(scalar_t)                                                              \
  template cudaError_t launch_sequence_step(const SequenceStepParams<scalar_t>&, cudaStream_t); \
  template cudaError_t launch_sequence_gradients(const SequenceGradientsParams<scalar_t>&,      \
                                                 cudaStream_t);                                 \
  template cudaError_t launch_old_states(const OldStatesParams<scalar_t>&, cudaStream_t);
LLTM_INSTANTIATE(double)
LLTM_INSTANTIATE(float)
LLTM_INSTANTIATE(c10::Half)
LLTM_INSTANTIATE(c10::BFloat16)
#undef LLTM_INSTANTIATE

}  // namespace lltm::cuda
