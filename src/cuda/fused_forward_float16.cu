#include "fused_forward.cuh"

namespace lltm::cuda {

template cudaError_t launch_fused_forward<Arithmetic::kFloat16>(const FusedForwardParams&,
                                                                ForwardTile,
                                                                int,
                                                                cudaStream_t);

}  // namespace lltm::cuda
