// What the cost model needs to know about the current device, queried from the CUDA runtime.
#pragma once

#include "../plan/facts.h"

#include <cuda_runtime_api.h>

namespace lltm::cuda {

/// The facts of the current context, whose device has these properties. They are queried once per
/// context. An error is returned, and the next call queries again.
cudaError_t device_facts(const cudaDeviceProp& properties, DeviceFacts* facts);

}  // namespace lltm::cuda
