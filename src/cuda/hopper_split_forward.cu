#include "hopper_split_forward.cuh"

namespace lltm::cuda {
cudaError_t launch_split_forward(const FusedForwardParams& params,
                                 SplitTile tile,
                                 int split,
                                 cudaStream_t stream) {
  switch (tile) {
    case SplitTile::k64x32:
      return launch_split_forward_tile<SplitForwardTile<1, 1, 5>>(params, split, stream);
    case SplitTile::k128x32:
      return launch_split_forward_tile<SplitForwardTile<2, 2, 4>>(params, split, stream);
    case SplitTile::kCount:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace lltm::cuda
