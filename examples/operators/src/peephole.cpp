// peephole: a recurrent operator, an LSTM whose gates also see its cell.
//
//   [z_i z_f z_g z_o] = z_x[t] + h @ weight_hh.T       p_i, p_f, p_o = peepholes
//   i = sigmoid(z_i + p_i c)     f = sigmoid(z_f + p_f c)     g = tanh(z_g)
//   c' = f c + i g               o = sigmoid(z_o + p_o c')    h' = o tanh(c')
//
// It begins with h = c = 0. z_x (T, N, 4H) is what the caller computes for all steps at once, such
// as at::linear(x, weight_ih, bias).
//
// - The loop over the steps is inside the operator: a sequence is one call and one node of the
//   graph, with one saved tensor for each of its three results.
// - gates holds the activations, a workspace for the backward. It is returned because only results
//   of the Function can be saved, and it is marked as not differentiable.
// - The gradient of a weight is a sum over the steps. The products of all steps are one product,
//   after the loop, so that the loop has only what the next step waits for.
// - The backward writes into its results, which autograd does not see. A second derivative would be
//   wrong, so it raises an error that names the operator.
//
// Includes such as ATen/ops/mul.h declare functions, but not the operators of tensors: a * b needs
// ATen/ATen.h, which takes a compiler some seconds more.
#include "checks.h"
#include "example_ops.h"
#include "layers.h"
#include "typed_call.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace example_ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Results = std::tuple<Tensor, Tensor, Tensor>;

constexpr const char* kName = "example_ops::peephole";

void check(const Tensor& z_x, const Tensor& weight_hh, const Tensor& peepholes) {
  check_dtype(kName, "z_x", z_x);
  check_rank(kName, "z_x", z_x, 3, "[steps, batch, 4 * hidden]");
  check_like(kName, "weight_hh", weight_hh, "z_x", z_x);
  check_rank(kName, "weight_hh", weight_hh, 2, "[4 * hidden, hidden]");
  check_size(kName, "weight_hh", weight_hh, 0, z_x.sym_size(2), "[4 * hidden, hidden]");
  check_size(kName, "z_x", z_x, 2, weight_hh.sym_size(1) * 4, "[steps, batch, 4 * hidden]");
  check_like(kName, "peepholes", peepholes, "z_x", z_x);
  check_rank(kName, "peepholes", peepholes, 2, "[3, hidden]");
  check_size(kName, "peepholes", peepholes, 0, 3, "[3, hidden]");
  check_size(kName, "peepholes", peepholes, 1, weight_hh.sym_size(1), "[3, hidden]");
}

Results meta(const Tensor& z_x, const Tensor& weight_hh, const Tensor& peepholes) {
  check(z_x, weight_hh, peepholes);
  const auto result = [&](const c10::SymInt& columns) {
    return at::empty_symint({z_x.sym_size(0), z_x.sym_size(1), columns}, z_x.options());
  };
  return {result(weight_hh.sym_size(1)), result(weight_hh.sym_size(1)), result(z_x.sym_size(2))};
}

Results kernel(const Tensor& z_x, const Tensor& weight_hh, const Tensor& peepholes) {
  auto [output, cells, gates] = meta(z_x, weight_hh, peepholes);
  Tensor h = at::zeros({z_x.size(1), weight_hh.size(1)}, z_x.options());
  Tensor c = h;
  for (int64_t t = 0; t < z_x.size(0); ++t) {
    const auto z = at::addmm(z_x[t], h, weight_hh.t()).chunk(4, /*dim=*/1);
    const Tensor i = at::sigmoid(z[0] + peepholes[0] * c);
    const Tensor f = at::sigmoid(z[1] + peepholes[1] * c);
    const Tensor g = at::tanh(z[2]);
    c = f * c + i * g;
    const Tensor o = at::sigmoid(z[3] + peepholes[2] * c);
    h = o * at::tanh(c);
    output[t].copy_(h);
    cells[t].copy_(c);
    gates[t].copy_(at::cat({i, f, g, o}, /*dim=*/1));
  }
  return {output, cells, gates};
}

// The gradients of z_x, weight_hh and peepholes. d_output and d_cells may be undefined.
variable_list gradients_of(const Tensor& d_output,
                           const Tensor& d_cells,
                           const Tensor& weight_hh,
                           const Tensor& peepholes,
                           const Tensor& output,
                           const Tensor& cells,
                           const Tensor& gates) {
  const Tensor zeros = at::zeros_like(cells.slice(0, 0, 1));
  // The states before each step.
  const Tensor old_h = at::cat({zeros, output}).slice(0, 0, -1);
  const Tensor old_c = at::cat({zeros, cells}).slice(0, 0, -1);
  const Tensor d_z = at::empty_like(gates);
  Tensor d_h = zeros[0];  // of the state after step t, from the step after it
  Tensor d_c = zeros[0];
  for (int64_t t = gates.size(0) - 1; t >= 0; --t) {
    const auto gate = gates[t].chunk(4, /*dim=*/1);
    const Tensor &i = gate[0], &f = gate[1], &g = gate[2], &o = gate[3];
    const Tensor tanh_c = at::tanh(cells[t]);
    d_h = d_output.defined() ? d_h + d_output[t] : d_h;
    d_c = d_cells.defined() ? d_c + d_cells[t] : d_c;
    const Tensor d_o = d_h * tanh_c * o * (1 - o);
    d_c = d_c + d_h * o * (1 - tanh_c * tanh_c) + d_o * peepholes[2];
    const Tensor d_i = d_c * g * i * (1 - i);
    const Tensor d_f = d_c * old_c[t] * f * (1 - f);
    d_z[t].copy_(at::cat({d_i, d_f, d_c * i * (1 - g * g), d_o}, /*dim=*/1));
    d_h = at::mm(d_z[t], weight_hh);
    d_c = d_c * f + d_i * peepholes[0] + d_f * peepholes[1];
  }
  const auto d_gate = d_z.chunk(4, /*dim=*/2);
  const auto sum = [](const Tensor& a, const Tensor& b) { return (a * b).sum({0, 1}); };
  return {d_z,
          at::mm(d_z.flatten(0, 1).t(), old_h.flatten(0, 1)),
          at::stack({sum(d_gate[0], old_c), sum(d_gate[1], old_c), sum(d_gate[3], cells)})};
}

class Peephole : public torch::autograd::Function<Peephole> {
 public:
  static constexpr bool is_traceable = true;

  static variable_list forward(AutogradContext* ctx,
                               const Tensor& z_x,
                               const Tensor& weight_hh,
                               const Tensor& peepholes) {
    ctx->set_materialize_grads(false);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [output, cells, gates] = peephole(z_x, weight_hh, peepholes);
    ctx->mark_non_differentiable({gates});
    ctx->save_for_backward({weight_hh, peepholes, output, cells, gates});
    return {output, cells, gates};
  }

  // One gradient per result; that of gates is never defined.
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (!gradients[0].defined() && !gradients[1].defined()) {
      return variable_list(3);
    }
    const variable_list saved = ctx->get_saved_variables();
    variable_list results;
    {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      results = gradients_of(
          gradients[0], gradients[1], saved[0], saved[1], saved[2], saved[3], saved[4]);
    }
    return not_differentiable_again(kName, std::move(results));
  }
};

Results autograd(const Tensor& z_x, const Tensor& weight_hh, const Tensor& peepholes) {
  check_defined(kName, "z_x", z_x);
  check_defined(kName, "weight_hh", weight_hh);
  check_defined(kName, "peepholes", peepholes);
  const variable_list results = Peephole::apply(z_x, weight_hh, peepholes);
  return {results[0], results[1], results[2]};
}

}  // namespace

Results peephole(const Tensor& z_x, const Tensor& weight_hh, const Tensor& peepholes) {
  return call<peephole>(kName, z_x, weight_hh, peepholes);
}

}  // namespace example_ops

TORCH_LIBRARY_FRAGMENT(example_ops, m) {
  m.def(
      "peephole(Tensor z_x, Tensor weight_hh, Tensor peepholes)"
      " -> (Tensor output, Tensor cells, Tensor gates)");
  m.impl("peephole", c10::DispatchKey::CPU, TORCH_FN(example_ops::kernel));
  m.impl("peephole", c10::DispatchKey::CUDA, TORCH_FN(example_ops::kernel));
  m.impl("peephole", c10::DispatchKey::Meta, TORCH_FN(example_ops::meta));
  m.impl("peephole", c10::DispatchKey::Autograd, TORCH_FN(example_ops::autograd));
}
