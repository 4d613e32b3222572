// What of a chunk's operands is loaded.
#pragma once

namespace lltm::cuda {

/// In a sequence, weights and input are constant, and h is carried from step to step: a step's
/// kernel may load the former while the one before it still computes the latter.
enum class Operands { kAll, kConstant, kCarried };

}  // namespace lltm::cuda
