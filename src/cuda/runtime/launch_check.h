// The check after every launch.
#pragma once

#include <cuda_runtime_api.h>

namespace lltm::cuda {

/// Raises c10::Error if a launch failed. If the library was not built for the GPU's architecture,
/// the message lists the architectures it was built for and says how to build for this one.
void check_launch(cudaError_t error);

}  // namespace lltm::cuda
