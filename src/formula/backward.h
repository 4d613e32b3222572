// The backward operators written in differentiable ATen operations: the composite formula.
//
// It is used where a fused kernel cannot be: for forward-mode AD of the backward, and the legacy
// vmap. Matrix products run in the tensors' dtype, pointwise operations in the accumulation type,
// and autocast is off. It loops over the steps, so tracers treat their number as a constant.
#pragma once

#include "../operators/checks.h"
#include "../operators/gate_gradients.h"
#include "../operators/gradient_index.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <tuple>

namespace lltm::formula {

/// The formula of lltm::_sequence_gate_gradients. It recomputes z from input and output, because
/// gates is not differentiable.
GateGradients sequence_gate_gradients(const SequenceBackwardArguments& arguments,
                                      bool reverse,
                                      std::array<bool, 2> state_mask);

/// The results of lltm::sequence_backward from those of lltm::_sequence_gate_gradients: the sums
/// over d_gates.
OptionalGradients finish_sequence_gradients(const GateGradients& gate_gradients,
                                            const SequenceBackwardArguments& arguments,
                                            bool reverse,
                                            std::array<bool, 5> output_mask);

/// The formula of lltm::sequence_backward: the two above.
OptionalGradients sequence_backward(const SequenceBackwardArguments& arguments,
                                    bool reverse,
                                    std::array<bool, 5> output_mask);

/// The formula of lltm::backward, as that of a sequence of one step.
OptionalGradients backward(const BackwardArguments& arguments, std::array<bool, 5> output_mask);

}  // namespace lltm::formula
