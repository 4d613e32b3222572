#include "../problem.h"
#include "hopper_backward.cuh"

namespace lltm::cuda {

int64_t hopper_backward_workspace(const BackwardProblem& params, int parts) {
  const BackwardSchedule schedule = schedule_backward(params, parts, 1);
  if (parts == 1) {
    return 0;
  }
  // A last row of tiles by itself has a partner with nothing in it.
  const int rows = schedule.state_pairs_rows ? (schedule.state_rows + 1) / 2 * 2 : 1;
  return int64_t(rows) * schedule.state_columns * parts * HopperBackward::kTileFloats;
}

template cudaError_t launch_hopper_backward_products<Arithmetic::kFloat16>(
    const BackwardProblem&, int, int, float*, cudaStream_t);
template cudaError_t launch_hopper_backward_products<Arithmetic::kBFloat16>(
    const BackwardProblem&, int, int, float*, cudaStream_t);

}  // namespace lltm::cuda
