#include "../cell.h"
#include "kernels.h"
#include "pointwise.cuh"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace lltm::cuda {
namespace {

template <typename scalar_t>
__device__ __forceinline__ accumulate_t<scalar_t> load_or_zero(const scalar_t* values,
                                                               int64_t index) {
  return values ? static_cast<accumulate_t<scalar_t>>(values[index]) : accumulate_t<scalar_t>(0);
}

template <typename scalar_t>
__global__ void __launch_bounds__(kThreads) backward_kernel(const BackwardParams<scalar_t> params) {
  using acc_t = accumulate_t<scalar_t>;
  const int64_t state_size = params.state_size;
  for_each_element(params.batch * state_size, [&](int64_t index) {
    const int64_t offset = index + index / state_size * 2 * state_size;
    const scalar_t* gates = params.gates + offset;
    const cell::Gates<acc_t> z{static_cast<acc_t>(gates[0]),
                               static_cast<acc_t>(gates[state_size]),
                               static_cast<acc_t>(gates[2 * state_size])};
    const auto gradients =
        cell::backward<cell::StandardMath>(z,
                                           static_cast<acc_t>(params.new_cell[index]),
                                           load_or_zero(params.grad_h, index),
                                           load_or_zero(params.grad_cell, index));
    if (params.d_gates) {
      scalar_t* d_gates = params.d_gates + offset;
      d_gates[0] = static_cast<scalar_t>(gradients.gates.input_gate);
      d_gates[state_size] = static_cast<scalar_t>(gradients.gates.output_gate);
      d_gates[2 * state_size] = static_cast<scalar_t>(gradients.gates.candidate);
    }
    if (params.d_old_cell) {
      params.d_old_cell[index] = static_cast<scalar_t>(gradients.old_cell);
    }
  });
}

}  // namespace

template <typename scalar_t>
void launch_backward(const BackwardParams<scalar_t>& params, cudaStream_t stream) {
  backward_kernel<scalar_t>
      <<<blocks_for(params.batch * params.state_size), kThreads, 0, stream>>>(params);
}

template void launch_backward(const BackwardParams<double>&, cudaStream_t);
template void launch_backward(const BackwardParams<float>&, cudaStream_t);
template void launch_backward(const BackwardParams<c10::Half>&, cudaStream_t);
template void launch_backward(const BackwardParams<c10::BFloat16>&, cudaStream_t);

}  // namespace lltm::cuda
