#include "fused_backward.cuh"

namespace lltm::cuda {

template cudaError_t launch_fused_backward(const BackwardParams<c10::Half>&,
                                           const BackwardProductsParams&,
                                           FusedBackwardTile,
                                           int,
                                           cudaStream_t);
template cudaError_t launch_fused_backward(const BackwardParams<c10::BFloat16>&,
                                           const BackwardProductsParams&,
                                           FusedBackwardTile,
                                           int,
                                           cudaStream_t);

}  // namespace lltm::cuda
