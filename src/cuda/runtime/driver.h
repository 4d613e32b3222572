// Functions of the CUDA driver, from the one that is loaded anyway: linking with it would need it
// where nothing is launched.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace lltm::cuda {

/// Null where the driver does not have it.
template <typename Function>
Function driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
  return error == cudaSuccess && result == cudaDriverEntryPointSuccess
             ? reinterpret_cast<Function>(found)
             : nullptr;
}

/// Makes the current device's context current for the driver, which a thread has from its first
/// call of the runtime that needs one: none may have come before, where the device is the default
/// one and PyTorch's allocator has memory at hand. (Setting the device that is set is allowed while
/// a graph is captured.)
inline cudaError_t bind_context() {
  thread_local bool bound = false;
  if (bound) {
    return cudaSuccess;
  }
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaSetDevice(device);
  }
  bound = error == cudaSuccess;
  return error;
}

}  // namespace lltm::cuda
