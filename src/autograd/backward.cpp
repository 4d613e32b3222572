// lltm::backward under the Autograd key.
#include "../checks.h"
#include "../dispatcher_kernel.h"
#include "../formula/cell.h"
#include "../optional_tensor.h"
#include "differentiation.h"
#include "double_backward.h"
#include "lltm/lltm.h"
#include "node.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace lltm {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// All arguments but gates, which are not differentiable.
constexpr size_t kInputCount = 7;

struct BackwardBackward {
  static constexpr const char* kName = "LltmBackwardBackward";
  static constexpr bool is_traceable = false;

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (!any_defined(gradients)) {
      return variable_list(kInputCount);
    }
    const variable_list saved = ctx->get_saved_variables();
    const Tensor& gates = saved[kInputCount];
    std::array<bool, kGradientCount> mask{};
    for (size_t gradient = 0; gradient < kGradientCount; ++gradient) {
      mask[gradient] = gradients[gradient].defined();
    }
    return differentiate(
        {saved.begin(), saved.begin() + kInputCount}, gradients, [&](const variable_list& inputs) {
          const auto grad_h = if_defined(inputs[0]);
          const auto grad_cell = if_defined(inputs[1]);
          const auto bias = if_defined(inputs[5]);
          return variables(formula::backward({grad_h,
                                              grad_cell,
                                              /*new_cell=*/inputs[2],
                                              gates,
                                              /*input=*/inputs[3],
                                              /*weights=*/inputs[4],
                                              bias,
                                              /*old_h=*/inputs[6]},
                                             mask));
        });
  }
};

OptionalGradients backward_autograd(const BackwardArguments& arguments,
                                    std::array<bool, 5> output_mask) {
  check_defined(arguments);
  const auto& [grad_h, grad_cell, new_cell, gates, input, weights, bias, old_h] = arguments;
  if (any_has_tangent(grad_h, grad_cell, new_cell, input, weights, bias, old_h)) {
    return formula::backward(arguments, output_mask);
  }
  const bool records = any_requires_grad(grad_h, grad_cell, new_cell, input, weights, bias, old_h);
  if (records) {
    check<c10::SymInt>(arguments);  // before the dispatcher looks for a backend of their layout
  }
  auto results = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return optional_gradients(lltm::backward(
        grad_h, grad_cell, new_cell, gates, input, weights, bias, old_h, output_mask));
  }();
  if (records) {
    const variable_list inputs{or_undefined(grad_h),
                               or_undefined(grad_cell),
                               new_cell,
                               input,
                               weights,
                               or_undefined(bias),
                               old_h};
    variable_list saved = inputs;
    saved.push_back(gates);
    record_node<BackwardBackward>(inputs, variables(results), std::move(saved));
  }
  return results;
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, Autograd, m) {
  m.impl("backward", dispatcher_kernel<backward_autograd, lltm::backward>());
}

}  // namespace lltm
