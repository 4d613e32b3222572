// A sequence of any cell, and its backward pass, with the kernels of kernels/kernels.h.
//
// They write every element of the outputs, or of the requested gradients. The outputs must be
// contiguous, and so must the gradients, except that those of the weights may have any stride
// between rows. The batch and the state must not be empty.
#pragma once

#include "../../operators/outputs.h"
#include "../../operators/recurrent.h"

namespace lltm::cpu {

void fused_sequence_out(const SequenceOutputs& outputs,
                        const RecurrentArguments& arguments,
                        const SequenceSizes<int64_t>& sizes,
                        bool reverse);
void fused_sequence_backward_out(const RecurrentGradients& gradients,
                                 const RecurrentBackwardArguments& arguments,
                                 const SequenceSizes<int64_t>& sizes,
                                 bool reverse);

}  // namespace lltm::cpu
