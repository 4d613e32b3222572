#include "hopper_forward.cuh"

namespace lltm::cuda {

template cudaError_t launch_hopper_forward<Arithmetic::kTf32>(const FusedForwardParams&,
                                                              HopperTile,
                                                              int,
                                                              cudaStream_t);
template cudaError_t launch_hopper_forward<Arithmetic::kFloat16>(const FusedForwardParams&,
                                                                 HopperTile,
                                                                 int,
                                                                 cudaStream_t);
template cudaError_t launch_hopper_forward<Arithmetic::kBFloat16>(const FusedForwardParams&,
                                                                  HopperTile,
                                                                  int,
                                                                  cudaStream_t);

}  // namespace lltm::cuda
