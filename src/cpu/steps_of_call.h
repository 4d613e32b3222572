// The steps of a call of lltm::sequence or lltm::sequence_backward on the CPU.
#pragma once

#include "../checks.h"
#include "../optional_tensor.h"
#include "schedule.h"

#include <ATen/core/Tensor.h>

namespace lltm::cpu {

/// The steps of a call, and the tensors that they point into.
class StepsOfCall {
 public:
  StepsOfCall(const SequenceArguments& arguments, bool reverse)
      : lengths_(contiguous_or_undefined(arguments.lengths)),
        reset_(contiguous_or_undefined(arguments.reset)),
        steps{.steps = arguments.input.size(0),
              .batch = arguments.input.size(1),
              .lengths = data_or_null<int64_t>(lengths_),
              .reset = data_or_null<bool>(reset_),
              .reverse = reverse} {}

 private:
  at::Tensor lengths_, reset_;

 public:
  const SequenceSteps steps;
};

}  // namespace lltm::cpu
