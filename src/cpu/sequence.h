// The results of lltm::sequence on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

namespace lltm::cpu {

/// Contiguous tensors. cells and gates have no steps if they are not kept.
struct SequenceOutputs {
  at::Tensor output, h_n, c_n, cells, gates;
};

}  // namespace lltm::cpu
