#include "hopper_split_backward.cuh"

namespace lltm::cuda {

template <Arithmetic kArithmetic>
cudaError_t launch_split_backward(const BackwardProductsParams& params,
                                  SplitProductTile tile,
                                  int split,
                                  cudaStream_t stream) {
  constexpr bool kFloat32 = kArithmetic == Arithmetic::kFloat32;  // larger stages
  switch (tile) {
    case SplitProductTile::k64x96:
      return launch_split_backward_tile<kArithmetic, 1, 1, kFloat32 ? 2 : 3, 2>(
          params, split, stream);
    case SplitProductTile::k128x96:
      return launch_split_backward_tile<kArithmetic, 2, 2, kFloat32 ? 4 : 6, 1>(
          params, split, stream);
    case SplitProductTile::kCount:
      break;
  }
  return cudaErrorInvalidValue;
}

template cudaError_t launch_split_backward<Arithmetic::kFloat32>(const BackwardProductsParams&,
                                                                 SplitProductTile,
                                                                 int,
                                                                 cudaStream_t);
template cudaError_t launch_split_backward<Arithmetic::kTf32>(const BackwardProductsParams&,
                                                              SplitProductTile,
                                                              int,
                                                              cudaStream_t);

}  // namespace lltm::cuda
