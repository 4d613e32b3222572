// Replaces elementwise.cu in builds without CUDA: an error message instead of a missing symbol.
#include "elementwise.h"

namespace example_ops {

void launch_on_cuda(const ElementwiseParams& /*params*/) {
  TORCH_CHECK(false,
              "example_ops was built without CUDA: its elementwise operators cannot take CUDA "
              "tensors. Move them to the CPU, or build with the CUDA Toolkit and a CUDA build of "
              "PyTorch");
}

}  // namespace example_ops
