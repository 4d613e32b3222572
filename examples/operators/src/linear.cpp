// linear: an optional argument, and computing only the gradients that are needed
// (needs_input_grad).
//
//   y = input @ weight.T + bias
//   d_input = dy @ weight     d_weight = dy.T @ input     d_bias = sum over N of dy
//
// with input (N, in), weight (out, in), bias (out) or None, and y (N, out).
//
// Often not all of the three gradients are needed: the input of a first layer needs none, and
// neither does a frozen weight. A needless product takes a third of the time of a training step,
// and the tensor that is saved for it is often most of its memory.
//
// The products are PyTorch's. ATen's matrix products run on every device, so the CPU kernel and the
// CUDA kernel are the same function.
#include "autocast.h"
#include "checks.h"
#include "example_ops.h"
#include "typed_call.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace example_ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kName = "example_ops::linear";

// `Tensor?` in the schema is std::optional<Tensor> in C++. Python passes None as an empty optional,
// and some C++ callers pass an optional that contains an undefined tensor. Both mean: no bias.
bool is_given(const std::optional<Tensor>& bias) {
  return bias.has_value() && bias->defined();
}

void check(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias) {
  check_dtype(kName, "input", input);
  check_like(kName, "weight", weight, "input", input);
  check_rank(kName, "input", input, 2, "[batch, in]");
  check_rank(kName, "weight", weight, 2, "[out, in]");
  check_size(kName, "weight", weight, 1, input.sym_size(1), "[out, in]");
  if (is_given(bias)) {
    check_like(kName, "bias", *bias, "input", input);
    check_rank(kName, "bias", *bias, 1, "[out]");
    check_size(kName, "bias", *bias, 0, weight.sym_size(0), "[out]");
  }
}

Tensor kernel(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias) {
  check(input, weight, bias);
  const WithoutAutocast without_autocast;
  return is_given(bias) ? at::addmm(*bias, input, weight.t()) : at::mm(input, weight.t());
}

Tensor meta(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias) {
  check(input, weight, bias);
  // sym_size, not size: the batch may be a symbol.
  return at::empty_symint({input.sym_size(0), weight.sym_size(0)}, input.options());
}

class Linear : public torch::autograd::Function<Linear> {
 public:
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* ctx,
                        const Tensor& input,
                        const Tensor& weight,
                        const std::optional<Tensor>& bias) {
    ctx->set_materialize_grads(false);
    // Each of the two is needed only for the gradient of the other: with a frozen weight, the input
    // is not kept alive. (needs_input_grad is not available here yet.)
    ctx->save_for_backward(
        {weight.requires_grad() ? input : Tensor(), input.requires_grad() ? weight : Tensor()});
    ctx->saved_data["bias is given"] = is_given(bias);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return example_ops::linear(input, weight, bias);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const Tensor& gradient = gradients[0];
    Tensor d_input;
    Tensor d_weight;
    Tensor d_bias;
    if (gradient.defined()) {
      const variable_list saved = ctx->get_saved_variables();
      const Tensor& input = saved[0];
      const Tensor& weight = saved[1];
      const WithoutAutocast without_autocast;
      if (ctx->needs_input_grad(0)) {
        d_input = at::mm(gradient, weight);
      }
      if (ctx->needs_input_grad(1)) {
        d_weight = at::mm(gradient.t(), input);
      }
      // A pitfall: needs_input_grad counts only the tensors that were passed. Without a bias there
      // is no third, and tensors after an absent one move up.
      if (ctx->saved_data["bias is given"].toBool() && ctx->needs_input_grad(2)) {
        d_bias = gradient.sum(0);
      }
    }
    return {d_input, d_weight, d_bias};
  }
};

Tensor autograd(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias) {
  check_defined(kName, "input", input);
  check_defined(kName, "weight", weight);
  return Linear::apply(input, weight, is_given(bias) ? bias : std::nullopt);
}

}  // namespace

Tensor linear(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias) {
  return call<linear>(kName, input, weight, bias);
}

}  // namespace example_ops

TORCH_LIBRARY_FRAGMENT(example_ops, m) {
  m.def("linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor");
  m.impl("linear", c10::DispatchKey::CPU, TORCH_FN(example_ops::kernel));
  m.impl("linear", c10::DispatchKey::CUDA, TORCH_FN(example_ops::kernel));
  m.impl("linear", c10::DispatchKey::Meta, TORCH_FN(example_ops::meta));
  m.impl("linear", c10::DispatchKey::Autograd, TORCH_FN(example_ops::autograd));
}
