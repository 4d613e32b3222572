#include "cell.h"

#include "../checks.h"
#include "../one_step.h"
#include "../without_autocast.h"
#include "sequence.h"

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

}  // namespace

Tensor accumulated(const Tensor& tensor) {
  return tensor.to(at::toOpMathType(tensor.scalar_type()));
}

Tensor complement(const Tensor& tensor) {
  return at::rsub(tensor, 1);
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

  const Tensor d_cell = grad_cell + grad_h * o * complement(t * t);
  const Tensor dz_i = d_cell * g * i * complement(i);
  const Tensor dz_o = grad_h * t * o * complement(o);
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
  check<c10::SymInt>(arguments);
  return gradients_of_one_step(arguments, [&](const SequenceBackwardArguments& of_sequence) {
    return sequence_backward(of_sequence, /*reverse=*/false, output_mask);
  });
}

}  // namespace lltm::formula
