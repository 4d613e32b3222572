#include "launch_check.h"

#include "last_error.h"
#include "version.h"

#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

namespace lltm::cuda {
namespace {

[[noreturn]] void fail_architecture_not_built() {
  int device = 0;
  cudaDeviceProp properties;
  C10_CUDA_CHECK(cudaGetDevice(&device));
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  const int architecture = properties.major * 10 + properties.minor;
  TORCH_CHECK(false,
              "lltm was built for the CUDA architectures ",
              LLTM_CUDA_ARCHITECTURES,
              ", which do not run on this GPU (",
              properties.name,
              ", architecture ",
              architecture,
              "). Rebuild the library with -DCMAKE_CUDA_ARCHITECTURES=",
              architecture);
}

}  // namespace

void check_launch(cudaError_t error) {
  if (error != cudaSuccess) {
    clear_last_error();
  }
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction ||
      error == cudaErrorUnsupportedPtxVersion) {
    fail_architecture_not_built();
  }
  C10_CUDA_CHECK(error);
}

}  // namespace lltm::cuda
