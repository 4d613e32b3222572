#include "cuda/kernels/backward/few_rows.cuh"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace lltm::cuda {

template cudaError_t launch_backward_few_rows(const GateGradientsParams<float>&,
                                              const BackwardProblem&,
                                              int,
                                              cudaStream_t);
template cudaError_t launch_backward_few_rows(const GateGradientsParams<c10::Half>&,
                                              const BackwardProblem&,
                                              int,
                                              cudaStream_t);
template cudaError_t launch_backward_few_rows(const GateGradientsParams<c10::BFloat16>&,
                                              const BackwardProblem&,
                                              int,
                                              cudaStream_t);

}  // namespace lltm::cuda
