// The elements of a cell from their pre-activations, where the library has computed the products.
#include "../../../cell/accumulate.h"
#include "../../../cell/lltm.h"
#include "../../ptx/overlap.cuh"
#include "../../tile/vectors.cuh"
#include "../elementwise.cuh"
#include "kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace lltm::cuda {
namespace {

/// kWidth neighbors of a row at a time.
template <typename scalar_t, int kWidth>
__global__ void __launch_bounds__(kElementThreads)
    cell_forward_kernel(const __grid_constant__ CellForwardParams<scalar_t> params) {
  using acc_t = accumulate_t<scalar_t>;
  wait_for_previous_kernel();
  const int64_t state_size = params.state_size;
  for_each_element(params.batch, state_size / kWidth, [&](int64_t row, int64_t piece) {
    const int64_t index = row * state_size + piece * kWidth;
    const scalar_t* const gates = params.gates + index + row * 2 * state_size;
    const auto z_i = read_vector<kWidth>(gates);
    const auto z_o = read_vector<kWidth>(gates + state_size);
    const auto z_g = read_vector<kWidth>(gates + 2 * state_size);
    const auto old_cell = read_vector<kWidth>(params.old_cell + index);
    Vector<scalar_t, kWidth> new_h, new_cell;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const acc_t z[] = {static_cast<acc_t>(z_i.values[i]),
                         static_cast<acc_t>(z_o.values[i]),
                         static_cast<acc_t>(z_g.values[i])};
      const auto state =
          cell::Lltm::forward<cell::StandardMath>(z, static_cast<acc_t>(old_cell.values[i]));
      new_h.values[i] = static_cast<scalar_t>(state.h);
      new_cell.values[i] = static_cast<scalar_t>(state.cell);
    }
    write_vector(params.new_h + index, new_h);
    write_vector(params.new_cell + index, new_cell);
  });
}

}  // namespace

template <typename scalar_t>
cudaError_t launch_cell_forward(const CellForwardParams<scalar_t>& params, cudaStream_t stream) {
  // Wider pieces are used only if they still fill the GPU. Outputs are aligned: they come from the
  // allocator.
  constexpr int kWidth = 4;
  constexpr int64_t kFull = 132 * 1024;
  const bool aligned =
      Matrix{params.old_cell, params.state_size}.starts_at_neighbors(kWidth, sizeof(scalar_t));
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
