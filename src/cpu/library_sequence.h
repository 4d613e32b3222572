// lltm::sequence and lltm::sequence_backward with ATen's matrix products.
#pragma once

#include "../checks.h"
#include "../gradients.h"
#include "../sequence_outputs.h"

namespace lltm::cpu {

/// Writes every element of the outputs. The batch and the state must not be empty.
void library_sequence_out(const SequenceOutputs& outputs,
                          const SequenceArguments& arguments,
                          bool reverse);

/// Writes every element of the requested gradients, which must be contiguous.
void library_sequence_backward_out(const SequenceGradients& gradients,
                                   const SequenceBackwardArguments& arguments,
                                   bool reverse);

}  // namespace lltm::cpu
