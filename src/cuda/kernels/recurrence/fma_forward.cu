#include "fma.cuh"
#include "lltm_cell.cuh"

namespace lltm::cuda {

cudaError_t launch_recurrence_fma(const RecurrenceForward<float>& problem,
                                  const RecurrenceTile& tile,
                                  cudaStream_t stream) {
  if (tile.x_inside && (problem.input_features < 1 || problem.input_features > tile.state_size)) {
    return cudaErrorInvalidValue;
  }
  return with_fma_tile<LltmCell, false>(tile, [&]<typename Tile>() {
    return launch_groups<&recurrence_forward_fma<Tile>, Tile::kThreads, Tile::kSharedBytes>(
        problem, tile, stream, problem.least_shared_bytes);
  });
}

}  // namespace lltm::cuda
