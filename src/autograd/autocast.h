// The casts of a forward operator's arguments under autocast.
#pragma once

#include "../dispatch/argument_list.h"
#include "../operators/names.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>

#include <cstddef>

namespace lltm {

/// The arguments in the device's autocast dtype, but for the state that a sequence carries and what
/// is float64 or no floating-point tensor.
template <typename Op>
OptionalTensors<Op::kTensors> cast_arguments(const typename Op::Arguments& arguments,
                                             c10::DeviceType device) {
  const auto dtype = at::autocast::get_autocast_dtype(device);
  const auto& casts = Op::template by_name<is_cast<typename Op::Arguments>>();
  auto list = tensors_of(arguments);
  for (size_t i = 0; i < list.size(); ++i) {
    if (casts[i]) {
      // Casts of leaves are cached for the duration of the autocast region: weights are cast once.
      list[i] = at::autocast::cached_cast(dtype, list[i], device);
    }
  }
  return list;
}

}  // namespace lltm
