// Which matrix products run on the CPU: this library's or ATen's.
#pragma once

#include <c10/core/ScalarType.h>

namespace lltm::cpu {

enum class Pass { kForward, kBackward };

/// Whether the kernels of kernels/kernels.h, rather than ATen, compute the matrix products of
/// tensors of this dtype. The environment variable LLTM_CPU_GEMM (auto, own or aten) overrides the
/// choice.
/// @throws c10::Error if LLTM_CPU_GEMM has any other value.
bool has_own_products(at::ScalarType dtype, Pass pass);

}  // namespace lltm::cpu
