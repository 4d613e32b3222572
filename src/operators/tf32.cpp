#include "tf32.h"

#include <ATen/Context.h>

namespace lltm {

bool allows_tf32(CellType cell) {
  const at::Context& context = at::globalContext();
  if (cell != CellType::kLltm) {
    // Without the operation it raises if those of cuDNN differ. float32Precision() may be a default
    // that it alone knows how to read.
    return context.allowTF32CuDNN(at::Float32Op::RNN);
  }
  return context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
         at::Float32Precision::TF32;
}

}  // namespace lltm
