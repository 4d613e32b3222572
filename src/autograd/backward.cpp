// lltm::backward under the Autograd key: the double backward.
#include "../checks.h"
#include "../formula/cell.h"
#include "differentiation.h"
#include "lltm/lltm.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace lltm {
namespace {

using at::Tensor;

OptionalGradients backward_autograd(const std::optional<Tensor>& grad_h,
                                    const std::optional<Tensor>& grad_cell,
                                    const Tensor& new_cell,
                                    const Tensor& gates,
                                    const Tensor& input,
                                    const Tensor& weights,
                                    const std::optional<Tensor>& bias,
                                    const Tensor& old_h,
                                    std::array<bool, 5> output_mask) {
  check_defined(BackwardArguments{grad_h, grad_cell, new_cell, gates, input, weights, bias, old_h});
  if (below_functorch() ||
      any_requires_grad(grad_h, grad_cell, new_cell, input, weights, bias, old_h) ||
      any_has_tangent(grad_h, grad_cell, new_cell, input, weights, bias, old_h)) {
    return formula::backward(
        grad_h, grad_cell, new_cell, gates, input, weights, bias, old_h, output_mask);
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return optional_gradients(
      lltm::backward(grad_h, grad_cell, new_cell, gates, input, weights, bias, old_h, output_mask));
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, Autograd, m) {
  m.impl("backward", TORCH_FN(backward_autograd));
}

}  // namespace lltm
