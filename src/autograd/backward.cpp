// lltm::backward under the Autograd key.
#include "../formula/backward.h"

#include "../dispatch/argument_list.h"
#include "../dispatch/optional_tensor.h"
#include "../formula/double_backward.h"
#include "../operators/checks.h"
#include "../operators/gradient_index.h"
#include "../operators/one_step.h"
#include "../operators/operators.h"
#include "differentiation.h"
#include "node.h"
#include "recorded_call.h"

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <array>
#include <tuple>

namespace lltm {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct BackwardBackward {
  static constexpr const char* kName = "LltmBackwardBackward";
  static constexpr bool is_traceable = false;

  /// The gradients of grad_h, grad_cell, new_cell, input, weights, bias and old_h.
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (!any_defined(gradients)) {
      return variable_list(number_differentiable<op::Backward>());
    }
    const auto saved = saved_list<op::Backward::kTensors>(*ctx);
    const variable_list found =
        as_one_step(pack_arguments<BackwardArguments>(saved), [&](const auto& arguments) {
          return formula::double_backward(arguments,
                                          /*reverse=*/false,
                                          {.input = one_step_of(gradients[kInput]),
                                           .weights = gradients[kWeights],
                                           .bias = gradients[kBias],
                                           .h0 = gradients[kOldH],
                                           .c0 = gradients[kOldCell]});
        });
    return {found[0].squeeze(0),
            found[3].squeeze(0),
            found[5].squeeze(0),
            found[6].squeeze(0),
            found[7],
            found[8],
            found[9]};
  }
};

OptionalGradients<5> backward_autograd(const BackwardArguments& arguments,
                                       std::array<bool, 5> output_mask) {
  check_defined(arguments);
  if (any_has_tangent<op::Backward>(arguments)) {
    return formula::backward(arguments, output_mask);
  }
  return recorded_call<op::Backward, BackwardBackward>(arguments, /*data=*/{}, output_mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, Autograd, m) {
  op::Backward::implement<backward_autograd>(m);
}

}  // namespace lltm
