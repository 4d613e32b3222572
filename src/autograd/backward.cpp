// lltm::backward under the Autograd key: the double backward.
#include "../checks.h"
#include "../dispatcher_kernel.h"
#include "../formula/cell.h"
#include "differentiation.h"
#include "lltm/lltm.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace lltm {
namespace {

using at::Tensor;

OptionalGradients backward_autograd(const BackwardArguments& arguments,
                                    std::array<bool, 5> output_mask) {
  check_defined(arguments);
  const auto& [grad_h, grad_cell, new_cell, gates, input, weights, bias, old_h] = arguments;
  if (below_functorch() ||
      any_requires_grad(grad_h, grad_cell, new_cell, input, weights, bias, old_h) ||
      any_has_tangent(grad_h, grad_cell, new_cell, input, weights, bias, old_h)) {
    return formula::backward(arguments, output_mask);
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return optional_gradients(
      lltm::backward(grad_h, grad_cell, new_cell, gates, input, weights, bias, old_h, output_mask));
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, Autograd, m) {
  m.impl("backward", dispatcher_kernel<backward_autograd, lltm::backward>());
}

}  // namespace lltm
