// What the cost model needs to know about the current device, queried from the CUDA runtime.
#pragma once

#include "../plan/facts.h"

#include <cuda_runtime_api.h>

namespace lltm::cuda {

/// The launch bounds of a kernel that was compiled for 90a. Compiled for another architecture, it
/// has half of them: whether wgmma can be used depends on the code that runs, not on the GPU.
constexpr int kThreadsWithWgmma = 256;

/// The facts of the current context, whose device has these properties. They are queried once per
/// context. An error is returned, and the next call queries again.
cudaError_t device_facts(const cudaDeviceProp& properties, DeviceFacts* facts);

}  // namespace lltm::cuda
