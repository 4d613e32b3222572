// The backward operators of a sequence on every device, but for what computes the gradients.
#pragma once

#include "../cell/products.h"
#include "../dispatch/optional_tensor.h"
#include "checks.h"
#include "gradient_index.h"
#include "operators.h"
#include "recurrent.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace lltm {

/// Allocates the gradients of a sequence, by empty(shape, dtype), and computes them.
template <typename Arguments, typename Empty>
class GradientBuffers {
 public:
  GradientBuffers(const Arguments& arguments,
                  const SequenceSizes<int64_t>& sizes,
                  const Empty& empty)
      : arguments_(arguments),
        sizes_(sizes),
        empty_(empty),
        anything_to_do_(ResultGradients(arguments).any_given() &&
                        sizes.batch * sizes.state_size > 0) {}

  at::Tensor empty_if(bool wanted, at::IntArrayRef shape) const {
    return empty_if(wanted, shape, arguments_.sequence.input.scalar_type());
  }
  at::Tensor state_if(bool wanted) const {
    return empty_if(wanted, {sizes_.batch, sizes_.state_size});
  }
  at::Tensor cell_if(bool wanted) const {
    return empty_if(
        wanted, {sizes_.batch, sizes_.state_size}, final_cell_dtype(arguments_.sequence));
  }

  /// Calls compute(gradients, arguments) if there is anything to do. Otherwise the gradients are
  /// zeros.
  template <typename Compute>
  void fill(const RecurrentGradients& gradients, const Compute& compute) const {
    if (anything_to_do_ && gradients.any_wanted()) {
      compute(gradients, RecurrentBackwardArguments(arguments_));
    }
  }

 private:
  at::Tensor empty_if(bool wanted, at::IntArrayRef shape, at::ScalarType dtype) const {
    if (!wanted) {
      return {};
    }
    const at::Tensor gradient = empty_(shape, dtype);
    return anything_to_do_ ? gradient : gradient.zero_();
  }

  const Arguments& arguments_;
  const SequenceSizes<int64_t>& sizes_;
  const Empty& empty_;
  const bool anything_to_do_;
};

/// The results of the backward operator of a sequence, which compute(gradients, arguments) writes.
template <typename Arguments, size_t count, typename Empty, typename Compute>
auto gradients_of_sequence(const Arguments& arguments,
                           const SequenceSizes<int64_t>& sizes,
                           const std::array<bool, count>& output_mask,
                           const Empty& empty,
                           const Compute& compute) {
  using Index = SequenceGradient<count>;
  const auto& sequence = arguments.sequence;
  constexpr const CellDescriptor& kCell = Arguments::kCell;
  const GradientBuffers buffers(arguments, sizes, empty);
  const auto bias_if = [&](bool wanted, int gates) {
    return buffers.empty_if(wanted, {sizes.state_size * gates});
  };
  const bool has_h0 = !kCell.carries_h;
  RecurrentGradients gradients{
      .input = buffers.empty_if(output_mask[Index::kInput], sequence.input.sizes()),
      .weights = {},
      .weight_ih = {},
      .weight_hh = {},
      .bias = bias_if(output_mask[Index::kBias], kCell.inputs),
      .bias_hh = bias_if(!kCell.adds && output_mask[Index::kBias + 1], kCell.gates),
      .h0 = buffers.state_if(has_h0 && output_mask[count - 2]),
      .c0 = buffers.cell_if(output_mask[count - 1]),
      .gates = {}};
  const auto weights = std::apply(
      [&](const auto&... weights) {
        size_t index = Index::kWeights;
        return std::array{buffers.empty_if(output_mask[index++], weights.sizes())...};
      },
      sequence.weight_tensors());
  if constexpr (weights.size() == 2) {
    gradients.weight_ih = weights[0];
    gradients.weight_hh = weights[1];
  } else if (weights[0].defined()) {
    gradients.weights = weights[0];
    gradients.weight_ih = input_columns(weights[0]);
    gradients.weight_hh = h_columns(weights[0]);
  }
  buffers.fill(gradients, compute);
  return std::apply(
      [&](const auto&... weights) {
        return std::tuple{if_defined(gradients.input),
                          if_defined(weights)...,
                          if_defined(gradients.bias),
                          if_defined(kCell.carries_h ? gradients.bias_hh : gradients.h0),
                          if_defined(gradients.c0)};
      },
      weights);
}

/// compute(gradients, arguments) also writes gradients.gates.
template <typename Arguments, size_t states, typename Empty, typename Compute>
GateGradientsOf<states> gate_gradients_of_sequence(const Arguments& arguments,
                                                   const SequenceSizes<int64_t>& sizes,
                                                   const std::array<bool, states>& state_mask,
                                                   const Empty& empty,
                                                   const Compute& compute) {
  const auto [wants_h0, wants_c0] = both_states(state_mask);
  const GradientBuffers buffers(arguments, sizes, empty);
  const RecurrentGradients gradients{
      .input = {},
      .weights = {},
      .weight_ih = {},
      .weight_hh = {},
      .bias = {},
      .bias_hh = {},
      .h0 = buffers.state_if(wants_h0),
      .c0 = buffers.cell_if(wants_c0),
      .gates = buffers.empty_if(
          true, {sizes.steps, sizes.batch, sizes.state_size * Arguments::kCell.saved})};
  buffers.fill(gradients, compute);
  return gate_gradients_of<states>(
      gradients.gates, if_defined(gradients.h0), if_defined(gradients.c0));
}

}  // namespace lltm
