// Whose matrix products run on the CPU: our kernels', or ATen's.
#pragma once

#include <c10/core/ScalarType.h>

namespace lltm::cpu {

enum class Pass { kForward, kBackward };

/// Whether the kernels of kernels/kernels.h compute the products of tensors of this type, or ATen
/// does. The environment variable LLTM_CPU_GEMM (own or aten) forces either.
/// @throws c10::Error for any other value of LLTM_CPU_GEMM.
bool has_own_products(at::ScalarType dtype, Pass pass);

}  // namespace lltm::cpu
