// What computes z_x, the product of the inputs of one or more steps with their columns of the
// weights, where the kernel of the steps does not multiply them itself.
#pragma once

#include "facts.h"
#include "shape.h"

namespace lltm::cuda {

enum class InputProductKernel {
  kLibrary,
  kSmall,         // kernels/recurrence/input_product.cu
  kWgmmaFloat32,  // kernels/recurrence/input_product_wgmma_float32.cu
};

struct InputProductPlan {
  InputProductKernel kernel;
  int tile_rows;  // of kWgmmaFloat32
  double us;      // an estimate

  /// The kernels of this library can be overlapped: a recurrence loads its weights meanwhile.
  bool is_own() const { return kernel != InputProductKernel::kLibrary; }
};

/// z_x of `batch` rows of one or more steps, which has a column for each of the gates. The layout
/// of the operands must not matter: the results would differ.
InputProductPlan plan_input_product(const Shape& shape, const DeviceFacts& device);

}  // namespace lltm::cuda
