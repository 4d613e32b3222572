// A whole sequence written in differentiable ATen operations, with the cell's step: the composite
// formula of lltm::sequence and of its backward. It serves where cell.h's does, and loops over the
// steps, whose number a tracer therefore takes for a constant.
//
// Rows that have ended, and resets, are chosen by where(): nothing of an input or of a gradient
// beyond a row's length, not even a NaN, reaches a result.
#pragma once

#include "../checks.h"
#include "../gradient_index.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <tuple>

namespace lltm::formula {

/// As lltm::sequence.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> sequence(
    const SequenceArguments& arguments, bool reverse, bool keep);

/// As lltm::sequence_backward. It computes z again from input and output, because gates is not
/// differentiable; through output and cells a gradient of this gradient reaches the sequence's
/// node.
OptionalGradients sequence_backward(const SequenceBackwardArguments& arguments,
                                    bool reverse,
                                    std::array<bool, 5> output_mask);

}  // namespace lltm::formula
