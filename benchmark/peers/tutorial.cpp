// The design of PyTorch's C++ extension tutorial, as a peer: cat, addmm, and pointwise operations
// by ATen on the CPU and by one fused kernel per direction on CUDA (tutorial.cu), with seven
// tensors kept for backward. The autograd.Function around it is in Python, as in the tutorial.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <tuple>

namespace {

using at::Tensor;

// new_h, new_cell; kept: input_gate, output_gate, candidate, X, z
using ForwardResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
// d_old_h, d_input, d_weights, d_bias, d_old_cell
using BackwardResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

ForwardResult forward(const Tensor& input,
                      const Tensor& weights,
                      const Tensor& bias,
                      const Tensor& old_h,
                      const Tensor& old_cell) {
  const Tensor x = at::cat({old_h, input}, 1);
  const Tensor z = at::addmm(bias, x, weights.t());
  const auto chunks = z.chunk(3, 1);
  const Tensor input_gate = at::sigmoid(chunks[0]);
  const Tensor output_gate = at::sigmoid(chunks[1]);
  const Tensor candidate = at::elu(chunks[2]);
  const Tensor new_cell = old_cell + candidate * input_gate;
  const Tensor new_h = at::tanh(new_cell) * output_gate;
  return {new_h, new_cell, input_gate, output_gate, candidate, x, z};
}

BackwardResult backward(const Tensor& grad_h,
                        const Tensor& grad_cell,
                        const Tensor& new_cell,
                        const Tensor& input_gate,
                        const Tensor& output_gate,
                        const Tensor& candidate,
                        const Tensor& x,
                        const Tensor& z,
                        const Tensor& weights) {
  const Tensor tanh_cell = at::tanh(new_cell);
  const Tensor d_cell = grad_h * output_gate * (1 - tanh_cell * tanh_cell) + grad_cell;
  const Tensor z_candidate = z.chunk(3, 1)[2];
  const Tensor elu_derivative =
      at::where(z_candidate > 0, at::ones_like(z_candidate), at::exp(z_candidate));
  const Tensor d_input_gate = d_cell * candidate * (input_gate * (1 - input_gate));
  const Tensor d_output_gate = grad_h * tanh_cell * (output_gate * (1 - output_gate));
  const Tensor d_candidate = d_cell * input_gate * elu_derivative;
  const Tensor d_z = at::cat({d_input_gate, d_output_gate, d_candidate}, 1);
  const Tensor d_weights = d_z.t().mm(x);
  const Tensor d_bias = d_z.sum(0);
  const Tensor d_x = d_z.mm(weights);
  const int64_t state_size = grad_h.size(1);
  // Slices of one tensor, as in the tutorial.
  return {d_x.narrow(1, 0, state_size),
          d_x.narrow(1, state_size, d_x.size(1) - state_size),
          d_weights,
          d_bias,
          d_cell};
}

}  // namespace

TORCH_LIBRARY(lltm_peers, m) {
  m.def(
      "tutorial_forward(Tensor input, Tensor weights, Tensor bias, Tensor old_h, Tensor old_cell)"
      " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "tutorial_backward(Tensor grad_h, Tensor grad_cell, Tensor new_cell, Tensor input_gate,"
      " Tensor output_gate, Tensor candidate, Tensor x, Tensor z, Tensor weights)"
      " -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "empty_forward(Tensor input, Tensor weights, Tensor? bias, Tensor old_h, Tensor old_cell)"
      " -> (Tensor new_h, Tensor new_cell, Tensor gates)");
  m.def(
      "empty_backward(Tensor input, Tensor weights, Tensor old_h)"
      " -> (Tensor d_input, Tensor d_weights, Tensor d_bias, Tensor d_old_h, Tensor d_old_cell)");
}

TORCH_LIBRARY_IMPL(lltm_peers, CPU, m) {
  m.impl("tutorial_forward", TORCH_FN(forward));
  m.impl("tutorial_backward", TORCH_FN(backward));
}
