#include "../problem.h"
#include "hopper_small_backward.cuh"

namespace lltm::cuda {

template cudaError_t launch_hopper_small_backward<Arithmetic::kFloat16>(const BackwardProblem&,
                                                                        int,
                                                                        cudaStream_t);
template cudaError_t launch_hopper_small_backward<Arithmetic::kBFloat16>(const BackwardProblem&,
                                                                         int,
                                                                         cudaStream_t);

}  // namespace lltm::cuda
