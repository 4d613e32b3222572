#include "fma.cuh"
#include "lltm_cell.cuh"

namespace lltm::cuda {

cudaError_t launch_recurrence_fma(const RecurrenceBackward<float>& problem,
                                  const RecurrenceTile& tile,
                                  cudaStream_t stream) {
  return with_fma_tile<LltmCell, true>(tile, [&]<typename Tile>() {
    return launch_groups<&recurrence_backward_fma<Tile>, Tile::kThreads, Tile::kSharedBytes>(
        problem, tile, stream);
  });
}

}  // namespace lltm::cuda
