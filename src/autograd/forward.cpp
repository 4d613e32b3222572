// lltm::forward under the Autograd key.
#include "../dispatch/optional_tensor.h"
#include "../formula/tangents.h"
#include "../operators/checks.h"
#include "../operators/gradient_index.h"
#include "../operators/one_step.h"
#include "../operators/operators.h"
#include "differentiation.h"
#include "node.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace lltm {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct ForwardBackward {
  static constexpr const char* kName = "LltmForwardBackward";
  // backward() reads only saved variables, so compiled autograd may trace it.
  static constexpr bool is_traceable = true;

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (!any_defined(gradients)) {
      return variable_list(kGradientCount);
    }
    const variable_list saved = ctx->get_saved_variables();
    return variables(op::Backward::call({.grad_h = if_defined(gradients[0]),
                                         .grad_cell = if_defined(gradients[1]),
                                         .new_cell = saved[4],
                                         .gates = saved[5],
                                         .input = saved[0],
                                         .weights = saved[1],
                                         .bias = if_defined(saved[2]),
                                         .old_h = saved[3]},
                                        wanted_gradients<kGradientCount>(*ctx)));
  }
};

/// Sets the tangents of forward-mode AD of the results.
void set_tangents(const Tensor& new_h, const Tensor& new_cell, const ForwardArguments& arguments) {
  const auto& [input, weights, bias, old_h, old_cell] = arguments;
  const auto tangents = formula::tangents_of_sequence({.input = one_step_of(primal_of(input)),
                                                       .weights = primal_of(weights),
                                                       .bias = primal_of(bias),
                                                       .h0 = primal_of(old_h),
                                                       .c0 = primal_of(old_cell),
                                                       .lengths = std::nullopt,
                                                       .reset = std::nullopt},
                                                      /*reverse=*/false,
                                                      {one_step_of(tangent_of(input)),
                                                       tangent_of(weights),
                                                       tangent_of(bias),
                                                       tangent_of(old_h),
                                                       tangent_of(old_cell)},
                                                      one_step_of(new_h),
                                                      one_step_of(new_cell));
  set_tangent(new_h, tangents[1]);
  set_tangent(new_cell, tangents[2]);
}

std::tuple<Tensor, Tensor, Tensor> forward_autograd(const ForwardArguments& arguments) {
  check_defined(arguments);
  const auto& [input, weights, bias, old_h, old_cell] = arguments;
  const bool dual = any_has_tangent<op::Forward>(arguments);
  auto results = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return op::Forward::call(arguments);
  }();
  const auto& [new_h, new_cell, gates] = results;
  // gates is not an output of the node: it is not differentiable, and compiled autograd does not
  // support nodes with outputs that are marked as such.
  const auto node =
      any_requires_grad<op::Forward>(arguments)
          ? record_node<ForwardBackward>(differentiable<op::Forward>(arguments), {new_h, new_cell})
          : nullptr;
  if (dual) {
    set_tangents(new_h, new_cell, arguments);
  }
  if (node) {
    // Only gates costs extra memory; the caller or the next step holds the other tensors anyway.
    // With frozen weights, the first backward does not read input and old_h. They are saved
    // nevertheless, because a double backward, which recomputes z from them, may follow.
    save(node, {input, weights, or_undefined(bias), old_h, new_cell, gates});
  }
  return results;
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, Autograd, m) {
  op::Forward::implement<forward_autograd>(m);
}

}  // namespace lltm
