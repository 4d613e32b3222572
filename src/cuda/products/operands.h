// Which operands of a chunk are loaded.
#pragma once

namespace lltm::cuda {

/// In a sequence, weights and input are constant and h is carried from step to step. A step's
/// kernel may load the former while the previous step still computes the latter.
enum class Operands { kAll, kConstant, kCarried };

}  // namespace lltm::cuda
