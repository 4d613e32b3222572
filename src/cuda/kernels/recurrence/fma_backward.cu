#include "fma.cuh"
#include "lltm_cell.cuh"

namespace lltm::cuda {

cudaError_t launch_recurrence_fma(const RecurrenceBackward<float>& problem,
                                  const RecurrenceTile& tile,
                                  cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(recurrence_blocks(problem.rows, tile));
  return with_fma_tile<LltmCell, true>(tile, [&]<typename Tile>() {
    return launch_in_clusters<&recurrence_backward_fma<Tile>, Tile::kThreads, Tile::kSharedBytes>(
        problem, dim3(blocks), 1, stream);
  });
}

}  // namespace lltm::cuda
