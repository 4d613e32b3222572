// A whole sequence written in differentiable ATen operations, with the cell's step: the composite
// formula of lltm::sequence and its backward. It is used where the formula in cell.h is. It loops
// over the steps, so tracers treat their number as a constant.
//
// Rows that have ended, and resets, are masked by where(), so that inputs and gradients beyond a
// row's length, and the state of a row of length 0, do not affect other results, even if they are
// NaN. The arguments of a step are masked, not only its results: the gradient of what where() drops
// is zero, but a step's derivative multiplies it, and 0 * NaN is NaN.
#pragma once

#include "../checks.h"
#include "../gate_gradients.h"
#include "../gradient_index.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <tuple>

namespace lltm::formula {

/// The formula of lltm::sequence.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> sequence(
    const SequenceArguments& arguments, bool reverse, bool keep);

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

}  // namespace lltm::formula
