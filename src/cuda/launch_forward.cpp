#include "launch_forward.h"

#include "../cell/with_cell.h"
#include "kernels/forward/kernels.h"

namespace lltm::cuda {

template <typename Problem>
cudaError_t launch_forward(const ForwardPlan& plan, const Problem& problem, cudaStream_t stream) {
  const TileShape& tile = plan.choice.candidate->tile;
  const int ranks = plan.choice.estimate.ranks;
  return with_arithmetic(plan.arithmetic, [&]<Arithmetic kArithmetic>() {
    switch (plan.choice.candidate->group) {
      case Group::kFewRows:
        // Float is multiplied in float32 even if TF32 is allowed. No step of 16 bits is supported.
        if constexpr (is_float(kArithmetic)) {
          return launch_forward_few_rows<Arithmetic::kFloat32>(
              problem, plan.multiprocessors, stream);
        } else if constexpr (!kOfSequence<Problem>) {
          return launch_forward_few_rows<kArithmetic>(problem, plan.multiprocessors, stream);
        } else {
          return cudaErrorInvalidValue;
        }
      case Group::kHopper:
        if constexpr (kOfSequence<Problem>) {
          return with_cell(plan.cell, [&]<typename Cell>() {
            return launch_forward_wgmma<kArithmetic, Cell>(problem, tile, ranks, stream);
          });
        } else {
          return launch_forward_wgmma<kArithmetic>(problem, tile, ranks, stream);
        }
      case Group::kTiles:
        return launch_forward_tiles<kArithmetic>(problem, tile, ranks, stream);
      default:
        return cudaErrorInvalidValue;
    }
  });
}

template cudaError_t launch_forward(const ForwardPlan&, const ForwardProblem&, cudaStream_t);
template cudaError_t launch_forward(const ForwardPlan&, const StepProblem&, cudaStream_t);

}  // namespace lltm::cuda
