#include "hopper_split_forward.cuh"

namespace lltm::cuda {
cudaError_t launch_split_forward(const FusedForwardParams& params,
                                 SplitTile tile,
                                 int split,
                                 cudaStream_t stream) {
  switch (tile) {
    case SplitTile::k64x8:
      // With so many stages that one block fits a multiprocessor: those of the next launch spread.
      return launch_split_forward_tile<SplitForwardTile<1, 8, 1, 8>>(params, split, stream);
    case SplitTile::k64x32:
      return launch_split_forward_tile<SplitForwardTile<1, 32, 1, 5>>(params, split, stream);
    case SplitTile::k128x32:
      return launch_split_forward_tile<SplitForwardTile<2, 32, 2, 4>>(params, split, stream);
    case SplitTile::kCount:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace lltm::cuda
