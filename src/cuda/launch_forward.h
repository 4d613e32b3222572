// Launches the kernel of the forward that a plan names.
#pragma once

#include "plan/plan.h"

#include <cuda_runtime_api.h>

namespace lltm::cuda {

/// Whether a cell has kernels of OneStepProblem, and their rows in plan/.
constexpr bool has_one_step(CellType cell) {
  return cell != CellType::kLltm;
}

/// Launches a plan other than the library's, of a cell or of a step of a sequence. What the plan
/// packs must be packed already.
template <typename Problem>
cudaError_t launch_forward(const ForwardPlan& plan, const Problem& problem, cudaStream_t stream);

}  // namespace lltm::cuda
