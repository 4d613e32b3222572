// The steps of a call of lltm::sequence or lltm::sequence_backward on the CPU.
#pragma once

#include "../checks.h"
#include "../optional_tensor.h"
#include "schedule.h"

#include <ATen/core/Tensor.h>

namespace lltm::cpu {

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

}  // namespace lltm::cpu
