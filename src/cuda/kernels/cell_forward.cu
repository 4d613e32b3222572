// The cell's elements from their pre-activations, where the library has formed the products.
#include "../../cell.h"
#include "../ptx/overlap.cuh"
#include "../runtime/launch.cuh"
#include "backward_kernels.h"
#include "forward_kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>

namespace lltm::cuda {
namespace {

constexpr int kThreads = 256;

/// kWidth neighbours of a row, read or written at once.
template <typename scalar_t, int kWidth>
struct alignas(sizeof(scalar_t) * kWidth) Neighbours {
  scalar_t values[kWidth];
};

// A grid-stride loop, so that any number of elements fits the grid.
template <typename scalar_t, int kWidth>
__global__ void __launch_bounds__(kThreads)
    cell_forward_kernel(const __grid_constant__ CellForwardParams<scalar_t> params) {
  using acc_t = accumulate_t<scalar_t>;
  using Piece = Neighbours<scalar_t, kWidth>;
  const int64_t state_size = params.state_size;
  const int64_t elements = params.batch * state_size;
  const int64_t step = int64_t(gridDim.x) * kThreads * kWidth;
  wait_for_previous_kernel();
  for (int64_t index = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * kWidth; index < elements;
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

template <typename scalar_t, int kWidth>
cudaError_t launch(const CellForwardParams<scalar_t>& params, cudaStream_t stream) {
  constexpr int64_t kMaxBlocks = 1 << 16, kElements = kThreads * kWidth;
  const int64_t blocks = (params.batch * params.state_size + kElements - 1) / kElements;
  return launch_in_clusters<&cell_forward_kernel<scalar_t, kWidth>, kThreads, 0, 0>(
      params, dim3(static_cast<unsigned>(std::min(blocks, kMaxBlocks))), 1, stream);
}

}  // namespace

template <typename scalar_t>
cudaError_t launch_cell_forward(const CellForwardParams<scalar_t>& params, cudaStream_t stream) {
  // Wider pieces only where the elements still fill the GPU; outputs are the allocator's, aligned.
  constexpr int kWidth = 4;
  constexpr int64_t kFull = 132 * 1024;
  const bool aligned =
      params.state_size % kWidth == 0 &&
      reinterpret_cast<uintptr_t>(params.old_cell) % (sizeof(scalar_t) * kWidth) == 0;
  if (sizeof(scalar_t) < 8 && aligned && params.batch * params.state_size >= kFull) {
    return launch<scalar_t, sizeof(scalar_t) < 8 ? kWidth : 1>(params, stream);
  }
  return launch<scalar_t, 1>(params, stream);
}

template cudaError_t launch_cell_forward(const CellForwardParams<double>&, cudaStream_t);
template cudaError_t launch_cell_forward(const CellForwardParams<float>&, cudaStream_t);
template cudaError_t launch_cell_forward(const CellForwardParams<c10::Half>&, cudaStream_t);
template cudaError_t launch_cell_forward(const CellForwardParams<c10::BFloat16>&, cudaStream_t);

}  // namespace lltm::cuda
