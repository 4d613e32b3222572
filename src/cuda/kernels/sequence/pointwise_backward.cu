// The pointwise kernels of a sequence's backward: a step without a product or with ATen's, and the
// h that each step started from. Steps in one launch are in gradient_tiles.cuh and
// gradient_wgmma_float32.cu.
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

template <typename scalar_t>
__global__ void __launch_bounds__(kElementThreads)
    sequence_gradients_kernel(const __grid_constant__ SequenceGradientsParams<scalar_t> params) {
  using Epilogue = SequenceGradientsEpilogue<scalar_t, TensorMath<scalar_t>>;
  wait_for_previous_kernel();
  const Epilogue epilogue(params);
  for_each_element(params.rows, params.state_size, [&](int64_t row, int64_t column) {
    typename Epilogue::Operands operands;
    epilogue.fetch(operands, row, column);
    epilogue.fetch_carried(operands, row, column);
    const auto from_h = operands.ran_last ? params.from_h[row * params.state_size + column] : 0;
    epilogue.finish(operands, row, column, from_h);
  });
}

/// kCount neighbors of a row at a time.
template <typename scalar_t, int kCount>
__global__ void __launch_bounds__(kElementThreads)
    old_states_kernel(const __grid_constant__ OldStatesParams<scalar_t> params) {
  wait_for_previous_kernel();
  for_each_element(
      params.steps * params.rows, params.state_size / kCount, [&](int64_t step, int64_t vector) {
        const int64_t t = step / params.rows, row = step - t * params.rows;
        const int64_t column = vector * kCount;
        const auto& rows = params.rows_of_sequence;
        const int64_t before = params.reverse ? t + 1 : t - 1;
        const bool is_first = before < 0 || before >= params.steps || !rows.runs(row, before);
        Vector<scalar_t, kCount> h{};
        if (rows.runs(row, t) && !rows.is_reset(row, t)) {
          if (!is_first) {
            h = read_vector<kCount>(&params.output.at(before, row, column));
          } else if (params.h0.data != nullptr) {
            h = read_vector<kCount>(&params.h0.at(0, row, column));
          }
        }
        write_vector(params.old_h + step * params.old_h_stride + column, h);
      });
}

template <typename scalar_t>
struct AddBiasPartsParams {
  const float* parts;
  int64_t count, size;
  scalar_t* d_bias;
};

constexpr int kPartColumns = 32, kPartLanes = 16, kPartThreads = kPartColumns * kPartLanes;

/// Each of kPartLanes threads adds every kPartLanes-th part of a column, and one of them their
/// sums.
template <typename scalar_t>
__global__ void __launch_bounds__(kPartThreads)
    add_bias_parts_kernel(const __grid_constant__ AddBiasPartsParams<scalar_t> params) {
  constexpr int kAtOnce = 8;
  __shared__ float sums[kPartLanes][kPartColumns];
  wait_for_previous_kernel();
  const auto lane = threadIdx.x / kPartColumns, of_block = threadIdx.x % kPartColumns;
  const int64_t column = int64_t(blockIdx.x) * kPartColumns + of_block;
  float sum = 0;
  if (column < params.size) {
    for (int64_t first = lane; first < params.count; first += kAtOnce * kPartLanes) {
      float some[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int64_t part = first + i * kPartLanes;
        some[i] = part < params.count ? params.parts[part * params.size + column] : 0;
      }
#pragma unroll
      for (const float part : some) {
        sum += part;
      }
    }
  }
  sums[lane][of_block] = sum;
  __syncthreads();
  if (lane == 0 && column < params.size) {
#pragma unroll
    for (int i = 1; i < kPartLanes; ++i) {
      sum += sums[i][of_block];
    }
    params.d_bias[column] = static_cast<scalar_t>(sum);
  }
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
  constexpr int kCount = 16 / sizeof(scalar_t);
  const int64_t elements = params.steps * params.rows * params.state_size;
  if (params.state_size % kCount == 0 && params.output.starts_at_neighbors(kCount) &&
      params.h0.starts_at_neighbors(kCount)) {
    return launch_on_elements<&old_states_kernel<scalar_t, kCount>>(
        params, elements / kCount, stream);
  }
  return launch_on_elements<&old_states_kernel<scalar_t, 1>>(params, elements, stream);
}

template <typename scalar_t>
cudaError_t launch_add_bias_parts(
    const float* parts, int64_t count, int64_t size, scalar_t* d_bias, cudaStream_t stream) {
  return launch_in_clusters<&add_bias_parts_kernel<scalar_t>, kPartThreads>(
      AddBiasPartsParams<scalar_t>{parts, count, size, d_bias},
      dim3(static_cast<unsigned>(ceil_div(size, kPartColumns))),
      1,
      stream);
}

template cudaError_t launch_add_bias_parts(const float*, int64_t, int64_t, float*, cudaStream_t);
template cudaError_t launch_add_bias_parts(
    const float*, int64_t, int64_t, c10::Half*, cudaStream_t);
template cudaError_t launch_add_bias_parts(
    const float*, int64_t, int64_t, c10::BFloat16*, cudaStream_t);

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
