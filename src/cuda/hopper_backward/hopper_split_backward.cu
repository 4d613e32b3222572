#include "../kernels/backward_kernels.h"
#include "../problem.h"
#include "hopper_split_backward.cuh"

namespace lltm::cuda {

cudaError_t launch_split_backward(const BackwardProblem& params,
                                  SplitProductTile tile,
                                  int split,
                                  cudaStream_t stream) {
  switch (tile) {
    case SplitProductTile::k64x96:
      return launch_split_backward_tile<1, 1, 2, 2>(params, split, stream);
    case SplitProductTile::k128x96:
      return launch_split_backward_tile<2, 2, 4, 1>(params, split, stream);
    case SplitProductTile::kCount:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace lltm::cuda
