// A sequence of any cell by products of the library and pointwise kernels.
#pragma once

#include "../../operators/outputs.h"
#include "../../operators/recurrent.h"
#include "../problem.h"
#include "../runtime/device.h"

#include <optional>

namespace lltm::cuda {

/// Writes every element of the outputs. The batch and the state must not be empty.
void library_sequence_out(const SequenceOutputs& outputs,
                          const RecurrentArguments& arguments,
                          const SequenceSizes<int64_t>& sizes,
                          std::optional<Arithmetic> arithmetic,
                          const Device& device,
                          bool reverse);

}  // namespace lltm::cuda
