// lltm::forward under the Autograd key.
#include "../checks.h"
#include "../dispatcher_kernel.h"
#include "../formula/cell.h"
#include "../gradient_index.h"
#include "../optional_tensor.h"
#include "differentiation.h"
#include "lltm/lltm.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace lltm {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class LLTMFunction : public torch::autograd::Function<LLTMFunction> {
 public:
  // backward() reads only saved variables, so compiled autograd may trace it.
  static constexpr bool is_traceable = true;

  static variable_list forward(AutogradContext* ctx,
                               const Tensor& input,
                               const Tensor& weights,
                               const std::optional<Tensor>& bias,
                               const Tensor& old_h,
                               const Tensor& old_cell,
                               Tensor* gates) {
    ctx->set_materialize_grads(false);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [new_h, new_cell, workspace] = lltm::forward(input, weights, bias, old_h, old_cell);
    // gates is not an output of the node: it is not differentiable, and compiled autograd does not
    // support nodes with outputs that are marked as such.
    *gates = std::move(workspace);
    // Only gates costs extra memory; the caller or the next step holds the other tensors anyway.
    // With frozen weights, the first backward does not read input and old_h. They are saved
    // nevertheless, because a double backward, which recomputes z from them, may follow.
    ctx->save_for_backward({input, weights, or_undefined(bias), old_h, new_cell, *gates});
    return {std::move(new_h), std::move(new_cell)};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const Tensor& grad_h = gradients[0];
    const Tensor& grad_cell = gradients[1];
    if (!grad_h.defined() && !grad_cell.defined()) {
      return variable_list(kArgumentCount);
    }
    const variable_list saved = ctx->get_saved_variables();
    const Tensor& input = saved[0];
    const Tensor& weights = saved[1];
    const Tensor& bias = saved[2];
    const Tensor& old_h = saved[3];
    const Tensor& new_cell = saved[4];
    const Tensor& gates = saved[5];

    auto [d_input, d_weights, d_bias, d_old_h, d_old_cell] =
        lltm::backward(if_defined(grad_h),
                       if_defined(grad_cell),
                       new_cell,
                       gates,
                       input,
                       weights,
                       if_defined(bias),
                       old_h,
                       wanted_gradients(*ctx, saved));
    return {std::move(d_input),
            std::move(d_weights),
            std::move(d_bias),
            std::move(d_old_h),
            std::move(d_old_cell),
            /*gates=*/Tensor()};
  }

 private:
  static constexpr size_t kArgumentCount = kGradientCount + 1;
};

std::tuple<Tensor, Tensor, Tensor> forward_autograd(const ForwardArguments& arguments) {
  check_defined(arguments);
  const auto& [input, weights, bias, old_h, old_cell] = arguments;
  if (below_functorch() || any_has_tangent(input, weights, bias, old_h, old_cell)) {
    return formula::forward(arguments);
  }
  if (!any_requires_grad(input, weights, bias, old_h, old_cell)) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return lltm::forward(input, weights, bias, old_h, old_cell);
  }
  // Function::apply does not accept undefined tensors, not even inside an optional.
  Tensor gates;
  auto state = LLTMFunction::apply(input, weights, if_given(bias), old_h, old_cell, &gates);
  return {std::move(state[0]), std::move(state[1]), std::move(gates)};
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, Autograd, m) {
  m.impl("forward", dispatcher_kernel<forward_autograd, lltm::forward>());
}

}  // namespace lltm
