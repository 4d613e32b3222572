#include "products.h"

#include "../dispatch/optional_tensor.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>

namespace lltm {

using at::Tensor;

Tensor h_columns(const Tensor& weights) {
  return weights.narrow(1, 0, weights.size(0) / 3);
}
Tensor input_columns(const Tensor& weights) {
  const int64_t state_size = weights.size(0) / 3;
  return weights.narrow(1, state_size, weights.size(1) - state_size);
}

void pre_activations_out(const Tensor& gates,
                         const Tensor& input,
                         const Tensor& weights,
                         const std::optional<Tensor>& bias,
                         const Tensor& old_h) {
  Tensor out = gates;
  const Tensor h_and_input = at::cat({old_h, input}, 1);
  if (is_given(bias)) {
    at::addmm_out(out, *bias, h_and_input, weights.t());
  } else {
    at::mm_out(out, h_and_input, weights.t());
  }
}

void weight_gradient_out(const Tensor& d_weights,
                         const Tensor& d_gates,
                         const Tensor& input,
                         const Tensor& old_h) {
  Tensor h_block = h_columns(d_weights);
  Tensor input_block = input_columns(d_weights);
  at::mm_out(h_block, d_gates.t(), old_h);
  at::mm_out(input_block, d_gates.t(), input);
}

void old_h_gradient_out(const Tensor& d_old_h, const Tensor& d_gates, const Tensor& weights) {
  Tensor out = d_old_h;
  at::mm_out(out, d_gates, h_columns(weights));
}

void input_gradient_out(const Tensor& d_input, const Tensor& d_gates, const Tensor& weights) {
  Tensor out = d_input;
  at::mm_out(out, d_gates, input_columns(weights));
}

}  // namespace lltm
