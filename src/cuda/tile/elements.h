// Elements of tensors.
#pragma once

#include "../problem.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>
#include <type_traits>

namespace lltm::cuda {

/// The type of tensors whose products are computed in kArithmetic.
template <Arithmetic kArithmetic>
using TensorElement = std::conditional_t<
    is_float(kArithmetic),
    float,
    std::conditional_t<kArithmetic == Arithmetic::kFloat16, c10::Half, c10::BFloat16>>;

LLTM_HOST_DEVICE int at_most(int64_t value, int limit) {
  return static_cast<int>(value < limit ? value : limit);
}

}  // namespace lltm::cuda
