#include "formula.h"

#include "checks.h"
#include "gradient_index.h"

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
#include <c10/core/SymInt.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace lltm::formula {
namespace {

using at::Tensor;

// The checks leave no dtype for autocast to change, and it must not lower the products of float64.
struct WithoutAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autocast_dispatch_keyset};
};

Tensor accumulated(const Tensor& tensor) {
  return tensor.to(at::toOpMathType(tensor.scalar_type()));
}

struct Gates {
  Tensor input_gate;
  Tensor output_gate;
  Tensor candidate;
};

Gates split(const Tensor& gates) {
  const auto chunks = accumulated(gates).chunk(3, /*dim=*/1);
  return {chunks[0], chunks[1], chunks[2]};
}

// 1 - tensor. The operator `-` fills a tensor with ones and subtracts in place, which tracers that
// run with autograd on, torch.scan and the export of a training step, refuse.
Tensor complement(const Tensor& tensor) {
  return at::rsub(tensor, 1);
}

Tensor columns(const Tensor& tensor, const c10::SymInt& begin, const c10::SymInt& end) {
  return tensor.slice_symint(/*dim=*/1, begin, end);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& input,
                                           const Tensor& weights,
                                           const std::optional<Tensor>& bias,
                                           const Tensor& old_h,
                                           const Tensor& old_cell) {
  check<c10::SymInt>(ForwardArguments{input, weights, bias, old_h, old_cell});
  const WithoutAutocast without_autocast;
  const Tensor gates = at::linear(at::cat({old_h, input}, 1), weights, bias);
  const Gates z = split(gates);
  const Tensor new_cell = accumulated(old_cell) + at::elu(z.candidate) * at::sigmoid(z.input_gate);
  const Tensor new_h = at::tanh(new_cell) * at::sigmoid(z.output_gate);
  const auto dtype = input.scalar_type();
  return {new_h.to(dtype), new_cell.to(dtype), gates.detach()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward(const std::optional<Tensor>& grad_h,
                                                            const std::optional<Tensor>& grad_cell,
                                                            const Tensor& new_cell,
                                                            const Tensor& gates,
                                                            const Tensor& input,
                                                            const Tensor& weights,
                                                            const std::optional<Tensor>& bias,
                                                            const Tensor& old_h,
                                                            std::array<bool, 5> output_mask) {
  const auto sizes = check<c10::SymInt>(
      BackwardArguments{grad_h, grad_cell, new_cell, gates, input, weights, bias, old_h});
  const WithoutAutocast without_autocast;

  const Tensor h_and_input = at::cat({old_h, input}, 1);
  const Gates z = split(at::linear(h_and_input, weights, bias));
  const Tensor i = at::sigmoid(z.input_gate);
  const Tensor o = at::sigmoid(z.output_gate);
  const Tensor g = at::elu(z.candidate);
  const Tensor t = at::tanh(accumulated(new_cell));
  // exp of a clamped z: elsewhere exp(z) may be infinite, and its gradient then NaN.
  const Tensor g_derivative = at::exp(z.candidate.clamp_max(0));

  // dz_o, and the part of d_cell that comes through new_h.
  Tensor dz_o = at::zeros_like(o);
  Tensor d_cell = at::zeros_like(o);
  if (is_given(grad_h)) {
    const Tensor dh = accumulated(*grad_h);
    dz_o = dh * t * o * complement(o);
    d_cell = dh * o * complement(t * t);
  }
  if (is_given(grad_cell)) {
    d_cell = d_cell + accumulated(*grad_cell);
  }
  const Tensor dz_i = d_cell * g * i * complement(i);
  const Tensor dz_g = d_cell * i * g_derivative;

  const auto dtype = input.scalar_type();
  const Tensor dz = at::cat({dz_i, dz_o, dz_g}, 1).to(dtype);
  const c10::SymInt width = sizes.state_size + sizes.input_features;
  const auto wanted = [&](Gradient gradient) { return output_mask[gradient]; };
  return {
      wanted(kInput) ? dz.matmul(columns(weights, sizes.state_size, width)) : Tensor(),
      wanted(kWeights) ? dz.t().matmul(h_and_input) : Tensor(),
      wanted(kBias) ? dz.sum(0) : Tensor(),
      wanted(kOldH) ? dz.matmul(columns(weights, 0, sizes.state_size)) : Tensor(),
      wanted(kOldCell) ? d_cell.to(dtype) : Tensor(),
  };
}

}  // namespace lltm::formula
