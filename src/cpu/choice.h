// Which matrix products run on the CPU: this library's or ATen's.
#pragma once

#include "../checks.h"

#include <c10/core/ScalarType.h>

namespace lltm::cpu {

enum class Pass { kForward, kBackward };

/// Whether the kernels of kernels/kernels.h, rather than ATen, compute the matrix products of a
/// cell of this dtype. The environment variable LLTM_CPU_GEMM (auto, own or aten) overrides the
/// choice.
/// @throws c10::Error if LLTM_CPU_GEMM has any other value.
bool has_own_products(at::ScalarType dtype, Pass pass, const CellSizes<int64_t>& sizes);

/// The same for sequences. Without these kernels, they multiply 16-bit tensors in float.
bool has_own_sequence_products(at::ScalarType dtype);

/// Whether LLTM_CPU_GEMM is own. It is obeyed whatever workspace the kernels need.
bool are_own_products_forced();

}  // namespace lltm::cpu
