// lltm::sequence and lltm::sequence_backward on either path: with the kernels of kernels/kernels.h,
// or with ATen's matrix products.
//
// All write every element of the outputs, or of the requested gradients, which must be contiguous.
// The batch and the state must not be empty.
#pragma once

#include "../checks.h"
#include "../gradients.h"
#include "../optional_tensor.h"
#include "../sequence_outputs.h"
#include "schedule.h"

#include <ATen/core/Tensor.h>

#include <initializer_list>

namespace lltm::cpu {

void fused_sequence_out(const SequenceOutputs& outputs,
                        const SequenceArguments& arguments,
                        bool reverse);
void fused_sequence_backward_out(const SequenceGradients& gradients,
                                 const SequenceBackwardArguments& arguments,
                                 bool reverse);

void library_sequence_out(const SequenceOutputs& outputs,
                          const SequenceArguments& arguments,
                          bool reverse);
void library_sequence_backward_out(const SequenceGradients& gradients,
                                   const SequenceBackwardArguments& arguments,
                                   bool reverse);

/// The steps of a call, and the tensors that they point into.
struct StepsOfCall {
  StepsOfCall(const SequenceArguments& arguments, bool reverse)
      : lengths(contiguous_or_undefined(arguments.lengths)),
        reset(contiguous_or_undefined(arguments.reset)),
        steps{.count = arguments.input.size(0),
              .batch = arguments.input.size(1),
              .lengths = data_or_null<int64_t>(lengths),
              .reset = data_or_null<bool>(reset),
              .reverse = reverse} {}

  const at::Tensor lengths, reset;  // before steps, which points into them
  const Steps steps;
};

/// Steps beyond a row's length are not run; what they would write is zero.
inline void zero_if_not_run(const std::optional<at::Tensor>& lengths,
                            std::initializer_list<at::Tensor> steps) {
  for (at::Tensor of_steps : steps) {
    if (is_given(lengths) && of_steps.defined()) {
      of_steps.zero_();
    }
  }
}

}  // namespace lltm::cpu
