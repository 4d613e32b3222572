// lltm::sequence_backward under the Autograd key: the double backward.
#include "../checks.h"
#include "../formula/sequence.h"
#include "differentiation.h"
#include "lltm/lltm.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace lltm {
namespace {

using at::Tensor;

OptionalGradients sequence_backward_autograd(const std::optional<Tensor>& grad_output,
                                             const std::optional<Tensor>& grad_h_n,
                                             const std::optional<Tensor>& grad_c_n,
                                             const std::optional<Tensor>& grad_cells,
                                             const Tensor& output,
                                             const Tensor& cells,
                                             const Tensor& gates,
                                             const Tensor& input,
                                             const Tensor& weights,
                                             const std::optional<Tensor>& bias,
                                             const std::optional<Tensor>& h0,
                                             const std::optional<Tensor>& c0,
                                             const std::optional<Tensor>& lengths,
                                             const std::optional<Tensor>& reset,
                                             bool reverse,
                                             std::array<bool, 5> output_mask) {
  const SequenceBackwardArguments arguments{grad_output,
                                            grad_h_n,
                                            grad_c_n,
                                            grad_cells,
                                            output,
                                            cells,
                                            gates,
                                            input,
                                            weights,
                                            bias,
                                            h0,
                                            c0,
                                            lengths,
                                            reset};
  check_defined(arguments);
  const auto any = [&](auto asked_of) {
    return asked_of(
        grad_output, grad_h_n, grad_c_n, grad_cells, output, cells, input, weights, bias, h0);
  };
  if (below_functorch() ||
      any([](const auto&... tensors) { return any_requires_grad(tensors...); }) ||
      any([](const auto&... tensors) { return any_has_tangent(tensors...); })) {
    return formula::sequence_backward(arguments, reverse, output_mask);
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return optional_gradients(lltm::sequence_backward(grad_output,
                                                    grad_h_n,
                                                    grad_c_n,
                                                    grad_cells,
                                                    output,
                                                    cells,
                                                    gates,
                                                    input,
                                                    weights,
                                                    bias,
                                                    h0,
                                                    c0,
                                                    lengths,
                                                    reset,
                                                    reverse,
                                                    output_mask));
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, Autograd, m) {
  m.impl("sequence_backward", TORCH_FN(sequence_backward_autograd));
}

}  // namespace lltm
