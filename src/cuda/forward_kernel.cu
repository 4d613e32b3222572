#include "../cell.h"
#include "kernels.h"
#include "pointwise.cuh"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace lltm::cuda {
namespace {

template <typename scalar_t>
__global__ void __launch_bounds__(kThreads) forward_kernel(const ForwardParams<scalar_t> params) {
  using acc_t = accumulate_t<scalar_t>;
  const int64_t state_size = params.state_size;
  for_each_element(params.batch * state_size, [&](int64_t index) {
    // (row, column) of the state is at row * 3 * state_size + column of gates.
    const scalar_t* gates = params.gates + index + index / state_size * 2 * state_size;
    const cell::Gates<acc_t> z{static_cast<acc_t>(gates[0]),
                               static_cast<acc_t>(gates[state_size]),
                               static_cast<acc_t>(gates[2 * state_size])};
    const auto state =
        cell::forward<cell::StandardMath>(z, static_cast<acc_t>(params.old_cell[index]));
    params.new_h[index] = static_cast<scalar_t>(state.h);
    params.new_cell[index] = static_cast<scalar_t>(state.cell);
  });
}

}  // namespace

template <typename scalar_t>
void launch_forward(const ForwardParams<scalar_t>& params, cudaStream_t stream) {
  forward_kernel<scalar_t>
      <<<blocks_for(params.batch * params.state_size), kThreads, 0, stream>>>(params);
}

template void launch_forward(const ForwardParams<double>&, cudaStream_t);
template void launch_forward(const ForwardParams<float>&, cudaStream_t);
template void launch_forward(const ForwardParams<c10::Half>&, cudaStream_t);
template void launch_forward(const ForwardParams<c10::BFloat16>&, cudaStream_t);

}  // namespace lltm::cuda
