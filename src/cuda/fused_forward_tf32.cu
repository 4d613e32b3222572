#include "fused_forward.cuh"

namespace lltm::cuda {

template cudaError_t launch_fused_forward<Arithmetic::kTf32>(const FusedForwardParams&,
                                                             ForwardTile,
                                                             int,
                                                             cudaStream_t);

}  // namespace lltm::cuda
