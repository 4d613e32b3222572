#include "launch_forward.h"

#include "../cell/with_cell.h"
#include "kernels/forward/kernels.h"

#include <type_traits>

namespace lltm::cuda {
namespace {

/// The cell's forward is an operator of the LLTM, and a sequence of one step of others.
template <typename Problem, typename Cell>
constexpr bool kHasKernels = kOfSequence<Problem> || std::is_same_v<Problem, ForwardProblem> ==
                                                         std::is_same_v<Cell, cell::Lltm>;

}  // namespace

template <typename Problem>
cudaError_t launch_forward(const ForwardPlan& plan, const Problem& problem, cudaStream_t stream) {
  const TileShape& tile = plan.choice.candidate->tile;
  const int ranks = plan.choice.estimate.ranks;
  const auto run = [&]<Arithmetic kArithmetic, typename Cell>() {
    switch (plan.choice.candidate->group) {
      case Group::kFewRows:
        // Float is multiplied in float32 even if TF32 is allowed. No step of 16 bits is supported.
        if constexpr (kOfSequence<Problem> && !Cell::kAdds) {
          return cudaErrorInvalidValue;
        } else if constexpr (is_float(kArithmetic)) {
          return launch_forward_few_rows<Arithmetic::kFloat32, Cell>(
              problem, plan.multiprocessors, stream);
        } else if constexpr (!kOfSequence<Problem>) {
          return launch_forward_few_rows<kArithmetic, Cell>(problem, plan.multiprocessors, stream);
        } else {
          return cudaErrorInvalidValue;
        }
      case Group::kHopper:
        return launch_forward_wgmma<kArithmetic, Cell>(problem, tile, ranks, stream);
      case Group::kTiles:
        if constexpr (std::is_same_v<Cell, cell::Lltm>) {
          return launch_forward_tiles<kArithmetic>(problem, tile, ranks, stream);
        } else {
          return cudaErrorInvalidValue;
        }
      default:
        return cudaErrorInvalidValue;
    }
  };
  return with_cell(plan.cell, [&]<typename Cell>() {
    if constexpr (kHasKernels<Problem, Cell>) {
      return with_arithmetic(plan.arithmetic, [&]<Arithmetic kArithmetic>() {
        if constexpr (kOfSequence<Problem> && !Cell::kAdds) {
          if (problem.input_features > 0) {
            return run.template operator()<kArithmetic, cell::Combined<Cell>>();
          }
        }
        return run.template operator()<kArithmetic, Cell>();
      });
    } else {
      return cudaErrorInvalidValue;
    }
  });
}

template cudaError_t launch_forward(const ForwardPlan&, const ForwardProblem&, cudaStream_t);
template cudaError_t launch_forward(const ForwardPlan&, const OneStepProblem&, cudaStream_t);
template cudaError_t launch_forward(const ForwardPlan&, const StepProblem&, cudaStream_t);

}  // namespace lltm::cuda
