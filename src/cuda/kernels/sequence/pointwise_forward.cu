// The pointwise kernels of a sequence's forward: the start of the state, the biases of both sides,
// and a step whose products are ATen's. Steps in one launch are in kernels/forward.
#include "../../../cell/combined.h"
#include "../../../cell/gru.h"
#include "../../../cell/lltm.h"
#include "../../../cell/lstm.h"
#include "../../../cell/sides.h"
#include "../../epilogue/step.cuh"
#include "../../ptx/overlap.cuh"
#include "../elementwise.cuh"
#include "kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <type_traits>
#include <utility>

namespace lltm::cuda {
namespace {

/// Device code cannot index the array itself.
template <typename Cell, int kGate>
using PlaceOfGate = std::integral_constant<int, Cell::kOfGate[kGate]>;

template <typename Cell, typename scalar_t>
__global__ void __launch_bounds__(kElementThreads)
    sequence_step_kernel(const __grid_constant__ SequenceStepParams<scalar_t> params) {
  using Epilogue = StepEpilogue<Cell, scalar_t, cell::StandardMath, 1, 1>;
  wait_for_previous_kernel();
  const Epilogue epilogue(params.step);
  const int64_t state_size = params.step.state_size;
  for_each_element(params.step.batch, state_size, [&](int64_t row, int64_t column) {
    typename Epilogue::Fetched operands;
    epilogue.fetch(operands, row, column);
    constexpr bool kIsCombined = requires { typename Cell::Sides; };
    accumulate_t<scalar_t> z[Cell::kGates][1];
#pragma unroll
    for (int k = 0; k < Cell::kGates; ++k) {
      const int64_t index = (row * Cell::kGates + k) * state_size + column;
      z[k][0] = params.z_input[index];
      if constexpr (!kIsCombined) {
        z[k][0] += params.z_h[index];
      }
    }
    if constexpr (kIsCombined) {
      using Sides = typename Cell::Sides;
      const accumulate_t<scalar_t>* const of_row =
          params.z_h + row * Sides::kGates * state_size + column;
      [&]<int... kGate>(std::integer_sequence<int, kGate...>) {
        ((z[PlaceOfGate<Sides, kGate>::value][0] += of_row[kGate * state_size]), ...);
      }(std::make_integer_sequence<int, Sides::kGates>{});
    }
    epilogue.finish(operands, z);
  });
}

template <typename scalar_t>
__global__ void __launch_bounds__(kElementThreads)
    sequence_start_kernel(const __grid_constant__ SequenceStartParams<scalar_t> params) {
  wait_for_previous_kernel();
  for_each_element(params.rows, params.state_size, [&](int64_t row, int64_t column) {
    const auto& rows = params.rows_of_sequence;
    const int64_t index = row * params.state_size + column;
    const int64_t first = params.reverse ? min(rows.length_of(row), params.steps) - 1 : 0;
    const bool runs = first >= 0 && first < params.steps && rows.runs(row, first);
    scalar_t h = 0;
    accumulate_t<scalar_t> cell = 0;
    if (!runs || !rows.is_reset(row, first)) {
      if (params.h0.data != nullptr) {
        h = params.h0.at(0, row, column);
      }
      if (params.c0_float.data != nullptr) {
        cell = params.c0_float.at(0, row, column);
      } else if (params.c0.data != nullptr) {
        cell = static_cast<accumulate_t<scalar_t>>(params.c0.at(0, row, column));
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

template <typename Cell, typename scalar_t>
__global__ void __launch_bounds__(kElementThreads)
    saved_bias_kernel(const __grid_constant__ SavedBiasParams<scalar_t> params) {
  using acc_t = accumulate_t<scalar_t>;
  wait_for_previous_kernel();
  start_next_kernel();
  for_each_element(1, params.state_size, [&](int64_t, int64_t column) {
    const auto bias_at = [&](const scalar_t* bias, int64_t stride, int place) {
      return bias != nullptr && place >= 0
                 ? static_cast<acc_t>(bias[(place * params.state_size + column) * stride])
                 : acc_t(0);
    };
#pragma unroll
    for (int k = 0; k < Cell::kSaved; ++k) {
      params.saved[k * params.state_size + column] = static_cast<scalar_t>(
          bias_at(params.bias, params.bias_stride, cell::input_at<Cell>(k)) +
          bias_at(params.bias_hh, params.bias_hh_stride, cell::gate_at<Cell>(k)));
    }
  });
}

}  // namespace

template <typename Cell, typename scalar_t>
cudaError_t launch_saved_bias(const SavedBiasParams<scalar_t>& params, cudaStream_t stream) {
  return launch_on_elements<&saved_bias_kernel<Cell, scalar_t>>(params, params.state_size, stream);
}

template <typename Cell, typename scalar_t>
cudaError_t launch_sequence_step(const SequenceStepParams<scalar_t>& params, cudaStream_t stream) {
  return launch_on_elements<&sequence_step_kernel<Cell, scalar_t>>(
      params, params.step.batch * params.step.state_size, stream);
}

template <typename scalar_t>
cudaError_t launch_sequence_start(const SequenceStartParams<scalar_t>& params,
                                  cudaStream_t stream) {
  return launch_on_elements<&sequence_start_kernel<scalar_t>>(
      params, params.rows * params.state_size, stream);
}

#define LLTM_INSTANTIATE(scalar_t)                                                           \
  template cudaError_t launch_sequence_step<cell::Lltm>(const SequenceStepParams<scalar_t>&, \
                                                        cudaStream_t);                       \
  template cudaError_t launch_sequence_step<cell::Lstm>(const SequenceStepParams<scalar_t>&, \
                                                        cudaStream_t);                       \
  template cudaError_t launch_sequence_step<cell::Combined<cell::Gru>>(                      \
      const SequenceStepParams<scalar_t>&, cudaStream_t);                                    \
  template cudaError_t launch_sequence_start(const SequenceStartParams<scalar_t>&, cudaStream_t);
LLTM_INSTANTIATE(double)
LLTM_INSTANTIATE(float)
LLTM_INSTANTIATE(c10::Half)
LLTM_INSTANTIATE(c10::BFloat16)
#undef LLTM_INSTANTIATE

#define LLTM_INSTANTIATE(scalar_t) \
  template cudaError_t launch_saved_bias<cell::Gru>(const SavedBiasParams<scalar_t>&, cudaStream_t);
LLTM_INSTANTIATE(float)
LLTM_INSTANTIATE(c10::Half)
LLTM_INSTANTIATE(c10::BFloat16)
#undef LLTM_INSTANTIATE

}  // namespace lltm::cuda
