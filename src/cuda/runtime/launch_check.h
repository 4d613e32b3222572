// The check after every launch.
#pragma once

#include <cuda_runtime_api.h>

namespace lltm::cuda {

/// Raises c10::Error for the error of a launch. Where the GPU's architecture was not
/// built, the message says which were, and how to build for this one.
void check_launch(cudaError_t error);

}  // namespace lltm::cuda
