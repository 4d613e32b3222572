// The memory layout of a product's operand.
#pragma once

namespace lltm::cuda {

// Which index of an operand is contiguous in memory: K, or the other one (M of A, N of B).
enum class Major { kK, kOther };

}  // namespace lltm::cuda
