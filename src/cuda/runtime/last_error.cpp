#include "last_error.h"

#include <cuda_runtime_api.h>

namespace lltm::cuda {

void clear_last_error() {
  cudaGetLastError();
}

}  // namespace lltm::cuda
