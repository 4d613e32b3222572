// The casts that autocast makes of an operator's arguments.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>

namespace lltm {

/// A function that casts a tensor, or an optional one, to the autocast dtype of this device:
/// floating-point tensors but float64.
inline auto autocast_on(c10::DeviceType device) {
  return [device, dtype = at::autocast::get_autocast_dtype(device)](const auto& tensor) {
    // Casts of leaves are cached while the autocast region lasts: weights are cast once.
    return at::autocast::cached_cast(dtype, tensor, device);
  };
}

}  // namespace lltm
