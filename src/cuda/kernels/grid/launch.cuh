// Cooperative launches.
#pragma once

#include "../../runtime/launch.cuh"
#include "grid.h"

namespace lltm::cuda {

template <auto kKernel, int kThreads, int kMostBytes, typename Params>
cudaError_t launch_grid(const Params& params,
                        const GridTeams& grid,
                        int bytes,
                        cudaStream_t stream) {
  return launch_cooperative(symbol_of<kKernel>(),
                            BlockSize{kThreads, bytes, bytes, kMostBytes},
                            &params,
                            grid_of(int64_t{grid.teams} * grid.blocks),
                            stream);
}

}  // namespace lltm::cuda
