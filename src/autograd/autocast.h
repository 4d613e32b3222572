// The casts of an operator's arguments under autocast.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>

namespace lltm {

/// Returns a function that casts a tensor or an optional tensor to the device's autocast dtype if
/// it is floating-point but not float64.
inline auto autocast_on(c10::DeviceType device) {
  return [device, dtype = at::autocast::get_autocast_dtype(device)](const auto& tensor) {
    // Casts of leaves are cached for the duration of the autocast region: weights are cast once.
    return at::autocast::cached_cast(dtype, tensor, device);
  };
}

}  // namespace lltm
