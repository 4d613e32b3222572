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
class GradientsOfSequence {
 public:
  GradientsOfSequence(const Arguments& arguments,
                      const SequenceSizes<int64_t>& sizes,
                      const Empty& empty)
      : arguments_(arguments),
        sizes_(sizes),
        empty_(empty),
        anything_to_do_(any_gradient(arguments) && sizes.batch * sizes.state_size > 0) {}

  at::Tensor empty_if(bool wanted, at::IntArrayRef shape) const {
    return empty_if(wanted, shape, arguments_.input.scalar_type());
  }
  at::Tensor state_if(bool wanted) const {
    return empty_if(wanted, {sizes_.batch, sizes_.state_size});
  }
  at::Tensor cell_if(bool wanted) const {
    return empty_if(
        wanted, {sizes_.batch, sizes_.state_size}, final_cell_dtype(arguments_.sequence()));
  }

  /// Calls compute(gradients, arguments) if there is anything to do. Otherwise the gradients are
  /// zeros.
  template <typename Compute>
  void fill(const RecurrentGradients& gradients, const Compute& compute) const {
    if (anything_to_do_ && gradients.any_wanted()) {
      compute(gradients, recurrent(arguments_));
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

/// compute(gradients, arguments, d_weights) gets d_weights as a whole, too, of which the gradients
/// have views.
template <typename Empty, typename Compute>
OptionalGradients gradients_of_sequence(const SequenceBackwardArguments& arguments,
                                        const SequenceSizes<int64_t>& sizes,
                                        const std::array<bool, 5>& output_mask,
                                        const Empty& empty,
                                        const Compute& compute) {
  const GradientsOfSequence of(arguments, sizes, empty);
  const at::Tensor d_weights = of.empty_if(output_mask[kWeights], arguments.weights.sizes());
  const RecurrentGradients gradients{
      .input = of.empty_if(output_mask[kInput], arguments.input.sizes()),
      .weight_ih = d_weights.defined() ? input_columns(d_weights) : at::Tensor(),
      .weight_hh = d_weights.defined() ? h_columns(d_weights) : at::Tensor(),
      .bias = of.empty_if(output_mask[kBias], {sizes.gates}),
      .h0 = of.state_if(output_mask[kH0]),
      .c0 = of.cell_if(output_mask[kC0]),
      .gates = {}};
  of.fill(gradients,
          [&](const RecurrentGradients& gradients, const RecurrentBackwardArguments& arguments) {
            compute(gradients, arguments, d_weights);
          });
  return {if_defined(gradients.input),
          if_defined(d_weights),
          if_defined(gradients.bias),
          if_defined(gradients.h0),
          if_defined(gradients.c0)};
}

/// compute(gradients, arguments)
template <typename Empty, typename Compute>
OptionalLstmGradients gradients_of_sequence(const LstmBackwardArguments& arguments,
                                            const SequenceSizes<int64_t>& sizes,
                                            const std::array<bool, 6>& output_mask,
                                            const Empty& empty,
                                            const Compute& compute) {
  using Index = LstmGradient;
  const GradientsOfSequence of(arguments, sizes, empty);
  const RecurrentGradients gradients{
      .input = of.empty_if(output_mask[Index::kInput], arguments.input.sizes()),
      .weight_ih = of.empty_if(output_mask[Index::kWeightIh], arguments.weight_ih.sizes()),
      .weight_hh = of.empty_if(output_mask[Index::kWeightHh], arguments.weight_hh.sizes()),
      .bias = of.empty_if(output_mask[Index::kBias], {sizes.gates}),
      .h0 = of.state_if(output_mask[Index::kH0]),
      .c0 = of.cell_if(output_mask[Index::kC0]),
      .gates = {}};
  of.fill(gradients, compute);
  return {if_defined(gradients.input),
          if_defined(gradients.weight_ih),
          if_defined(gradients.weight_hh),
          if_defined(gradients.bias),
          if_defined(gradients.h0),
          if_defined(gradients.c0)};
}

/// compute(gradients, arguments) also writes gradients.gates.
template <typename Arguments, typename Empty, typename Compute>
GateGradients gate_gradients_of_sequence(const Arguments& arguments,
                                         const SequenceSizes<int64_t>& sizes,
                                         const std::array<bool, 2>& state_mask,
                                         const Empty& empty,
                                         const Compute& compute) {
  const GradientsOfSequence of(arguments, sizes, empty);
  const RecurrentGradients gradients{
      .input = {},
      .weight_ih = {},
      .weight_hh = {},
      .bias = {},
      .h0 = of.state_if(state_mask[0]),
      .c0 = of.cell_if(state_mask[1]),
      .gates = of.empty_if(true, {sizes.steps, sizes.batch, sizes.gates})};
  of.fill(gradients, compute);
  return {gradients.gates, if_defined(gradients.h0), if_defined(gradients.c0)};
}

}  // namespace lltm
