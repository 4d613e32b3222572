#include "cell.h"

#include "../checks.h"
#include "../without_autocast.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>

namespace lltm::formula {

using at::Tensor;

namespace {

struct Gates {
  Tensor input_gate;
  Tensor output_gate;
  Tensor candidate;
};

Gates split(const Tensor& gates) {
  const auto chunks = accumulated(gates).chunk(3, /*dim=*/1);
  return {chunks[0], chunks[1], chunks[2]};
}

// 1 - tensor. The operator `-` would fill a tensor with ones and subtract in place, which fails in
// tracers that run with autograd on: torch.scan and the export of a training step.
Tensor complement(const Tensor& tensor) {
  return at::rsub(tensor, 1);
}

Tensor accumulated_if_given(const std::optional<Tensor>& tensor) {
  return is_given(tensor) ? accumulated(*tensor) : Tensor();
}

}  // namespace

Tensor accumulated(const Tensor& tensor) {
  return tensor.to(at::toOpMathType(tensor.scalar_type()));
}

Tensor columns(const Tensor& matrix, const c10::SymInt& begin, const c10::SymInt& end) {
  // A copy, because torch.scan saves it for its backward, and refuses views of its inputs.
  return matrix.slice_symint(/*dim=*/1, begin, end).clone();
}

State step(const Tensor& z, const Tensor& old_cell) {
  const Gates gates = split(z);
  const Tensor new_cell = old_cell + at::elu(gates.candidate) * at::sigmoid(gates.input_gate);
  return {at::tanh(new_cell) * at::sigmoid(gates.output_gate), new_cell};
}

StepGradients step_backward(const Tensor& z,
                            const Tensor& new_cell,
                            const Tensor& grad_h,
                            const Tensor& grad_cell) {
  const Gates gates = split(z);
  const Tensor i = at::sigmoid(gates.input_gate);
  const Tensor o = at::sigmoid(gates.output_gate);
  const Tensor g = at::elu(gates.candidate);
  const Tensor t = at::tanh(new_cell);
  // z is clamped because exp of a large z is infinite, and its gradient would be NaN.
  const Tensor g_derivative = at::exp(gates.candidate.clamp_max(0));

  // dz_o, and the contribution of new_h to d_cell.
  Tensor dz_o, d_cell;
  if (grad_h.defined()) {
    dz_o = grad_h * t * o * complement(o);
    d_cell = grad_h * o * complement(t * t);
  } else {
    dz_o = at::zeros_like(o);
    d_cell = at::zeros_like(o);
  }
  if (grad_cell.defined()) {
    d_cell = d_cell + grad_cell;
  }
  const Tensor dz_i = d_cell * g * i * complement(i);
  const Tensor dz_g = d_cell * i * g_derivative;
  return {at::cat({dz_i, dz_o, dz_g}, 1), d_cell};
}

std::tuple<Tensor, Tensor, Tensor> forward(const ForwardArguments& arguments) {
  check<c10::SymInt>(arguments);
  const auto& [input, weights, bias, old_h, old_cell] = arguments;
  const WithoutAutocast without_autocast;
  const Tensor gates = at::linear(at::cat({old_h, input}, 1), weights, bias);
  const State state = step(gates, accumulated(old_cell));
  const auto dtype = input.scalar_type();
  return {state.h.to(dtype), state.cell.to(dtype), gates.detach()};
}

OptionalGradients backward(const BackwardArguments& arguments, std::array<bool, 5> output_mask) {
  const auto sizes = check<c10::SymInt>(arguments);
  const auto& [grad_h, grad_cell, new_cell, gates, input, weights, bias, old_h] = arguments;
  const WithoutAutocast without_autocast;

  const Tensor h_and_input = at::cat({old_h, input}, 1);
  const StepGradients gradients = step_backward(at::linear(h_and_input, weights, bias),
                                                accumulated(new_cell),
                                                accumulated_if_given(grad_h),
                                                accumulated_if_given(grad_cell));

  const auto dtype = input.scalar_type();
  const Tensor dz = gradients.gates.to(dtype);
  const c10::SymInt width = sizes.state_size + sizes.input_features;
  return {
      if_wanted(output_mask[kInput],
                [&] { return dz.matmul(columns(weights, sizes.state_size, width)); }),
      if_wanted(output_mask[kWeights], [&] { return dz.t().matmul(h_and_input); }),
      if_wanted(output_mask[kBias], [&] { return dz.sum(0); }),
      if_wanted(output_mask[kOldH],
                [&] { return dz.matmul(columns(weights, 0, sizes.state_size)); }),
      if_wanted(output_mask[kOldCell], [&] { return gradients.old_cell.to(dtype); }),
  };
}

}  // namespace lltm::formula
