// lltm::sequence and lltm::sequence_backward with the kernels of kernels/kernels.h.
#pragma once

#include "../checks.h"
#include "../gradients.h"
#include "../sequence_outputs.h"

#include <ATen/core/Tensor.h>

namespace lltm::cpu {

/// Whether this library's kernels run the sequence. Follows choice.h for the dtype that the other
/// path multiplies in; unless they are forced, the packed weights must also fit the workspace that
/// a call may take.
bool has_own_sequence(const at::Tensor& weights);

/// Writes every element of the outputs. The batch and the state must not be empty.
void own_sequence_out(const SequenceOutputs& outputs,
                      const SequenceArguments& arguments,
                      bool reverse);

/// Writes every element of the requested gradients, which must be contiguous.
void own_sequence_backward_out(const SequenceGradients& gradients,
                               const SequenceBackwardArguments& arguments,
                               bool reverse);

}  // namespace lltm::cpu
