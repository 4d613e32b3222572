// lltm::sequence and lltm::sequence_backward by the kernels of kernels/kernels.h.
#pragma once

#include "../checks.h"

#include <ATen/core/Tensor.h>

namespace lltm::cpu {

/// Contiguous; cells and gates have no steps where they are not kept.
struct SequenceOutputs {
  at::Tensor output, h_n, c_n, cells, gates;
};

/// Contiguous; undefined where not wanted.
struct SequenceGradients {
  at::Tensor input, weights, bias, h0, c0;

  bool any_wanted() const {
    return input.defined() || weights.defined() || bias.defined() || h0.defined() || c0.defined();
  }
};

/// Whether our kernels run this sequence, as choice.h says of the type that the other path
/// multiplies in; the weights, which ours pack, must fit the workspace that a call may take.
bool has_own_sequence(const at::Tensor& weights);

/// Writes every element of the outputs, for a batch and a state that are not empty.
void own_sequence_out(const SequenceOutputs& outputs,
                      const SequenceArguments& arguments,
                      bool reverse);

/// Writes every element of the gradients that are wanted.
void own_sequence_backward_out(const SequenceGradients& gradients,
                               const SequenceBackwardArguments& arguments,
                               bool reverse);

}  // namespace lltm::cpu
