// lltm::sequence and lltm::sequence_backward with ATen's matrix products.
#pragma once

#include "../checks.h"
#include "../gradients.h"
#include "../sequence_outputs.h"

namespace lltm::cpu {

/// Writes every element of the outputs. The batch and the state must not be empty.
void aten_sequence_out(const SequenceOutputs& outputs,
                       const SequenceArguments& arguments,
                       const SequenceSizes<int64_t>& sizes,
                       bool reverse);

/// Writes the requested gradients, which must be zero: those of steps that are not run stay as they
/// are.
void aten_sequence_backward_out(const SequenceGradients& gradients,
                                const SequenceBackwardArguments& arguments,
                                const SequenceSizes<int64_t>& sizes,
                                bool reverse);

}  // namespace lltm::cpu
