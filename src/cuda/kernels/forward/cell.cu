// The elements of a cell from their pre-activations, where the library has computed the products.
#include "../../../cell.h"
#include "../../ptx/overlap.cuh"
#include "../../tile/vectors.cuh"
#include "../backward/kernels.h"
#include "../elementwise.cuh"
#include "kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace lltm::cuda {
namespace {

// Processes kWidth neighbors of a row at once, in a grid-stride loop, so that any number of
// elements fits the grid.
template <typename scalar_t, int kWidth>
__global__ void __launch_bounds__(kElementThreads)
    cell_forward_kernel(const __grid_constant__ CellForwardParams<scalar_t> params) {
  using acc_t = accumulate_t<scalar_t>;
  using Piece = Vector<scalar_t, kWidth>;
  const int64_t state_size = params.state_size;
  const int64_t elements = params.batch * state_size;
  const int64_t step = int64_t(gridDim.x) * kElementThreads * kWidth;
  wait_for_previous_kernel();
  for (int64_t index = (int64_t(blockIdx.x) * kElementThreads + threadIdx.x) * kWidth;
       index < elements;
       index += step) {
    // (row, column) of the state is at row * 3 * state_size + column of gates.
    const scalar_t* gates = params.gates + index + index / state_size * 2 * state_size;
    const Piece z_i = *reinterpret_cast<const Piece*>(gates);
    const Piece z_o = *reinterpret_cast<const Piece*>(gates + state_size);
    const Piece z_g = *reinterpret_cast<const Piece*>(gates + 2 * state_size);
    const Piece old_cell = *reinterpret_cast<const Piece*>(params.old_cell + index);
    Piece new_h, new_cell;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const cell::Gates<acc_t> z{static_cast<acc_t>(z_i.values[i]),
                                 static_cast<acc_t>(z_o.values[i]),
                                 static_cast<acc_t>(z_g.values[i])};
      const auto state =
          cell::forward<cell::StandardMath>(z, static_cast<acc_t>(old_cell.values[i]));
      new_h.values[i] = static_cast<scalar_t>(state.h);
      new_cell.values[i] = static_cast<scalar_t>(state.cell);
    }
    *reinterpret_cast<Piece*>(params.new_h + index) = new_h;
    *reinterpret_cast<Piece*>(params.new_cell + index) = new_cell;
  }
}

}  // namespace

template <typename scalar_t>
cudaError_t launch_cell_forward(const CellForwardParams<scalar_t>& params, cudaStream_t stream) {
  // Wider pieces are used only if they still fill the GPU. Outputs are aligned: they come from the
  // allocator.
  constexpr int kWidth = 4;
  constexpr int64_t kFull = 132 * 1024;
  const bool aligned =
      params.state_size % kWidth == 0 &&
      reinterpret_cast<uintptr_t>(params.old_cell) % (sizeof(scalar_t) * kWidth) == 0;
  const int64_t elements = params.batch * params.state_size;
  if constexpr (sizeof(scalar_t) < 8) {
    if (aligned && elements >= kFull) {
      return launch_on_elements<&cell_forward_kernel<scalar_t, kWidth>>(
          params, elements / kWidth, stream);
    }
  }
  return launch_on_elements<&cell_forward_kernel<scalar_t, 1>>(params, elements, stream);
}

template cudaError_t launch_cell_forward(const CellForwardParams<double>&, cudaStream_t);
template cudaError_t launch_cell_forward(const CellForwardParams<float>&, cudaStream_t);
template cudaError_t launch_cell_forward(const CellForwardParams<c10::Half>&, cudaStream_t);
template cudaError_t launch_cell_forward(const CellForwardParams<c10::BFloat16>&, cudaStream_t);

}  // namespace lltm::cuda
