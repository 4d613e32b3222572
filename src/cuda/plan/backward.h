// Which kernels compute a backward: of the candidates that support a problem, the one with the
// least estimated time. Plain host code that queries no device.
#pragma once

#include "choice.h"

#include <cstdint>

namespace lltm::cuda {

/// The time to pack what TMA cannot describe of contiguous operands, if there is anything.
/// Not for products by wgmma in TF32.
inline double packing_time(const Shape& s, bool by_wgmma, const DeviceFacts& device) {
  if (s.vector_rows) {
    return 0;
  }
  const auto is_whole = [&](int64_t columns) { return columns * s.element_bytes() % 16 == 0; };
  const bool in_halves = has_weights_in_halves(*s.arithmetic, by_wgmma);
  const int64_t columns = !is_whole(s.width())                   ? s.width()
                          : in_halves && !is_whole(s.state_size) ? s.input_features
                                                                 : 0;
  return device.costs->packing.time(static_cast<double>(s.batch * s.width() + s.gates() * columns) *
                                    s.element_bytes());
}

/// The plan of the products by wgmma with the least estimated time, without that of d_gates: in 16
/// bits and TF32, and in float32. The plan, and so the order of all sums, depends only on the
/// sizes, not on which gradients are wanted.
Estimate choose_gradient_plan(const Shape& shape, const DeviceFacts& device);
Estimate choose_float32_gradient_plan(const Shape& shape, const DeviceFacts& device);

}  // namespace lltm::cuda
