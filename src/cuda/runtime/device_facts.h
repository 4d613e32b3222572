// What the cost model wants to know of the current device, asked of the driver.
#pragma once

#include "../model.h"

#include <cuda_runtime_api.h>

namespace lltm::cuda {

/// Of the current context, whose device has these properties. Asked once a context; a failure is
/// returned, and asked again.
cudaError_t device_facts(const cudaDeviceProp& properties, DeviceFacts* facts);

}  // namespace lltm::cuda
