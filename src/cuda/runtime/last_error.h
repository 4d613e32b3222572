// The CUDA runtime's record of the last error.
#pragma once

namespace lltm::cuda {

/// Clears the last error; otherwise the next check of a launch would find it, too. In a wheel, the
/// kernels are a library with a CUDA runtime of its own, which has recorded the error.
void clear_last_error();

}  // namespace lltm::cuda
