// lltm::sequence and lltm::sequence_backward with the kernels of kernels/kernels.h.
//
// They write every element of the outputs, or of the requested gradients, which must be contiguous.
// The batch and the state must not be empty.
#pragma once

#include "../../operators/checks.h"
#include "../../operators/gradients.h"
#include "../../operators/outputs.h"

namespace lltm::cpu {

void fused_sequence_out(const SequenceOutputs& outputs,
                        const SequenceArguments& arguments,
                        bool reverse);
void fused_sequence_backward_out(const SequenceGradients& gradients,
                                 const SequenceBackwardArguments& arguments,
                                 bool reverse);

}  // namespace lltm::cpu
