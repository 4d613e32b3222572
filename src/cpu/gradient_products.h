// The products that gradients are made of, by the kernels of kernels/kernels.h.
#pragma once

#include "../gradients.h"

#include <ATen/core/Tensor.h>

namespace lltm::cpu {

/// What finish_gradients() does, for a batch and a state that are not empty.
void finish_own_gradients(const CellGradients& gradients,
                          const at::Tensor& input,
                          const at::Tensor& weights,
                          const at::Tensor& old_h);

}  // namespace lltm::cpu
