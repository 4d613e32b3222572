#include "gradients.h"

#include "../cell/products.h"

#include <ATen/ops/sum.h>

namespace lltm {

using at::Tensor;

CellGradients empty_gradients(const CellSizes<int64_t>& sizes,
                              c10::function_ref<Tensor(at::IntArrayRef)> empty,
                              const std::array<bool, kGradientCount>& output_mask,
                              bool with_gates) {
  const auto& [batch, input_features, state_size, gates] = sizes;
  const auto empty_if = [&empty](bool wanted, at::IntArrayRef shape) {
    return wanted ? empty(shape) : Tensor();
  };
  const bool gates_wanted = with_gates && (output_mask[kInput] || output_mask[kWeights] ||
                                           output_mask[kBias] || output_mask[kOldH]);
  return {
      .input = empty_if(output_mask[kInput], {batch, input_features}),
      .weights = empty_if(output_mask[kWeights], {gates, state_size + input_features}),
      .bias = empty_if(output_mask[kBias], {gates}),
      .old_h = empty_if(output_mask[kOldH], {batch, state_size}),
      .old_cell = empty_if(output_mask[kOldCell], {batch, state_size}),
      .gates = empty_if(gates_wanted, {batch, gates}),
  };
}

void finish_gradients(const CellGradients& gradients,
                      const Tensor& input,
                      const Tensor& weights,
                      const Tensor& old_h) {
  if (gradients.bias.defined()) {
    Tensor bias = gradients.bias;
    at::sum_out(bias, gradients.gates, /*dim=*/0);
  }
  if (gradients.weights.defined()) {
    weight_gradient_out(gradients.weights, gradients.gates, input, old_h);
  }
  if (gradients.input.defined()) {
    input_gradient_out(gradients.input, gradients.gates, weights);
  }
  if (gradients.old_h.defined()) {
    old_h_gradient_out(gradients.old_h, gradients.gates, weights);
  }
}

}  // namespace lltm
