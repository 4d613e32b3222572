// Launches a kernel of the recurrence: a block, or a cluster of blocks, for each group of rows.
#pragma once

#include "../../runtime/dispatch.h"
#include "../../runtime/launch.cuh"
#include "recurrence.h"

#include <algorithm>
#include <cstdint>

namespace lltm::cuda {

/// Each block gets kBytes of shared memory or, by itself, least_bytes if that is more
/// (RecurrenceForward::least_shared_bytes).
template <auto kKernel, int kThreads, int kBytes, typename Problem>
cudaError_t launch_groups(const Problem& problem,
                          const RecurrenceTile& tile,
                          cudaStream_t stream,
                          int least_bytes = 0) {
  const int64_t blocks = ceil_div(problem.rows, problem.group_rows) * tile.cluster;
  return launch_in_clusters<kKernel, kThreads, kBytes, kBytes, std::max(kBytes, kSpreadBytes)>(
      problem, grid_of(blocks), tile.cluster, stream, least_bytes);
}

}  // namespace lltm::cuda
