// lltm::sequence_backward under the Autograd key: the double backward.
#include "../checks.h"
#include "../dispatcher_kernel.h"
#include "../formula/sequence.h"
#include "differentiation.h"
#include "lltm/lltm.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace lltm {
namespace {

using at::Tensor;

OptionalGradients sequence_backward_autograd(const SequenceBackwardArguments& arguments,
                                             bool reverse,
                                             std::array<bool, 5> output_mask) {
  check_defined(arguments);
  const auto& a = arguments;
  const auto any = [&](auto asked_of) {
    return asked_of(a.grad_output,
                    a.grad_h_n,
                    a.grad_c_n,
                    a.grad_cells,
                    a.output,
                    a.cells,
                    a.input,
                    a.weights,
                    a.bias,
                    a.h0);
  };
  if (below_functorch() ||
      any([](const auto&... tensors) { return any_requires_grad(tensors...); }) ||
      any([](const auto&... tensors) { return any_has_tangent(tensors...); })) {
    return formula::sequence_backward(arguments, reverse, output_mask);
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return optional_gradients(lltm::sequence_backward(a.grad_output,
                                                    a.grad_h_n,
                                                    a.grad_c_n,
                                                    a.grad_cells,
                                                    a.output,
                                                    a.cells,
                                                    a.gates,
                                                    a.input,
                                                    a.weights,
                                                    a.bias,
                                                    a.h0,
                                                    a.c0,
                                                    a.lengths,
                                                    a.reset,
                                                    reverse,
                                                    output_mask));
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, Autograd, m) {
  m.impl("sequence_backward",
         dispatcher_kernel<sequence_backward_autograd, lltm::sequence_backward>());
}

}  // namespace lltm
