// The check after every launch.
#pragma once

namespace lltm::cuda {

/// Raises c10::Error for the last CUDA error of this thread. Where the GPU's architecture was not
/// built, the message says which were, and how to build for this one.
void check_launch();

}  // namespace lltm::cuda
