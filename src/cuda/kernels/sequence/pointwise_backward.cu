// The pointwise kernels of a sequence's backward: a step without a product or with ATen's, and the
// h that each step started from. Steps in one launch are in gradient_tiles.cuh and
// gradient_wgmma.cuh.
#include "../../../cell/combined.h"
#include "../../../cell/gru.h"
#include "../../../cell/lltm.h"
#include "../../../cell/lstm.h"
#include "../../epilogue/math.cuh"
#include "../../epilogue/sequence_gradients.cuh"
#include "../../ptx/overlap.cuh"
#include "../../tile/vectors.cuh"
#include "../elementwise.cuh"
#include "kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace lltm::cuda {
namespace {

template <typename Cell, typename scalar_t>
__global__ void __launch_bounds__(kElementThreads)
    sequence_gradients_kernel(const __grid_constant__ SequenceGradientsParams<scalar_t> params) {
  using Epilogue = SequenceGradientsEpilogue<scalar_t, TensorMath<scalar_t>, Cell>;
  wait_for_previous_kernel();
  const Epilogue epilogue(params);
  for_each_element(params.rows, params.state_size, [&](int64_t row, int64_t column) {
    typename Epilogue::Fetched operands;
    epilogue.fetch(operands, row, column);
    epilogue.fetch_carried(operands, row, column);
    epilogue.prepare(operands);
    using acc_t = accumulate_t<scalar_t>;
    const acc_t from_h[] = {operands.ran_last ? params.from_h[row * params.state_size + column]
                                              : acc_t(0)};
    epilogue.finish(operands, row, column, from_h);
  });
}

/// kCount neighbors of a row at a time.
template <typename scalar_t, int kCount>
__global__ void __launch_bounds__(kElementThreads)
    old_states_kernel(const __grid_constant__ OldStatesParams<scalar_t> params) {
  wait_for_previous_kernel();
  const OldStates<scalar_t>& states = params.states;
  for_each_element(
      states.steps * states.rows, params.state_size / kCount, [&](int64_t step, int64_t vector) {
        const int64_t t = step / states.rows, column = vector * kCount;
        const StridedRow<scalar_t> row = states.at(t, step - t * states.rows);
        Vector<scalar_t, kCount> h{};
        if (row.data != nullptr) {
          h = read_vector<kCount>(row.data + column * row.stride);
        }
        write_vector(params.old_h + step * params.old_h_stride + column, h);
      });
}

}  // namespace

template <typename Cell, typename scalar_t>
cudaError_t launch_sequence_gradients(const SequenceGradientsParams<scalar_t>& params,
                                      cudaStream_t stream) {
  return launch_on_elements<&sequence_gradients_kernel<Cell, scalar_t>>(
      params, params.rows * params.state_size, stream);
}

template <typename scalar_t>
cudaError_t launch_old_states(const OldStatesParams<scalar_t>& params, cudaStream_t stream) {
  constexpr int kCount = 16 / sizeof(scalar_t);
  const OldStates<scalar_t>& states = params.states;
  const int64_t elements = states.steps * states.rows * params.state_size;
  if (params.state_size % kCount == 0 && states.results.starts_at_neighbors(kCount) &&
      states.initial.starts_at_neighbors(kCount)) {
    return launch_on_elements<&old_states_kernel<scalar_t, kCount>>(
        params, elements / kCount, stream);
  }
  return launch_on_elements<&old_states_kernel<scalar_t, 1>>(params, elements, stream);
}

#define LLTM_INSTANTIATE(scalar_t)                                           \
  template cudaError_t launch_sequence_gradients<cell::Lltm>(                \
      const SequenceGradientsParams<scalar_t>&, cudaStream_t);               \
  template cudaError_t launch_sequence_gradients<cell::Lstm>(                \
      const SequenceGradientsParams<scalar_t>&, cudaStream_t);               \
  template cudaError_t launch_sequence_gradients<cell::Combined<cell::Gru>>( \
      const SequenceGradientsParams<scalar_t>&, cudaStream_t);               \
  template cudaError_t launch_old_states(const OldStatesParams<scalar_t>&, cudaStream_t);
LLTM_INSTANTIATE(double)
LLTM_INSTANTIATE(float)
LLTM_INSTANTIATE(c10::Half)
LLTM_INSTANTIATE(c10::BFloat16)
#undef LLTM_INSTANTIATE

}  // namespace lltm::cuda
