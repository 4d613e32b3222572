// cube: derivatives of every order, with a saved intermediate.
//
//   y = x^3          dx = 3 x^2 dy          and so on: 6 x, 6
//
// The slope 3 x^2 is computed in the forward pass and saved, as one would do if it were expensive
// and a by-product of the forward pass. This is where second derivatives silently go wrong:
// autograd treats a saved intermediate as a constant. dy * slope then has the right value, but no
// gradient flows from it to x, and the second derivative is 0 instead of 6 x.
//
// The solution: the Function returns the intermediate as a second output, although the operator has
// only one. It then belongs to the graph, and backward() gives it a derivative. To test a double
// backward, use gradgradcheck; first gradients cannot reveal the mistake.
#include "checks.h"
#include "elementwise_host.h"
#include "example_ops.h"
#include "typed_call.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace example_ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kName = "example_ops::cube";

Tensor kernel(const Tensor& x) {
  check_dtype(kName, "x", x);
  return elementwise(Cube{}, x);
}

Tensor meta(const Tensor& x) {
  check_dtype(kName, "x", x);
  return elementwise_meta(x);
}

class CubeFunction : public torch::autograd::Function<CubeFunction> {
 public:
  static constexpr bool is_traceable = true;

  static variable_list forward(AutogradContext* ctx, const Tensor& x) {
    ctx->set_materialize_grads(false);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    Tensor y = cube(x);
    if (!x.requires_grad()) {
      return {std::move(y)};  // without a backward pass, the slope is not needed
    }
    Tensor slope = mul_constant(elementwise_mult(x, x), 3);
    ctx->save_for_backward({x, slope});
    return {std::move(y), std::move(slope)};
  }

  // One gradient per output. The gradient of slope is defined only in a double backward, where it
  // comes from the product below. In the first backward nothing depends on slope.
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const Tensor& d_y = gradients[0];
    const Tensor& d_slope = gradients[1];
    const variable_list saved = ctx->get_saved_variables();
    const Tensor& x = saved[0];
    const Tensor& slope = saved[1];
    Tensor d_x;
    if (d_y.defined()) {
      d_x = elementwise_mult(d_y, slope);
    }
    if (d_slope.defined()) {
      const Tensor through_slope = mul_constant(elementwise_mult(d_slope, x), 6);
      d_x = d_x.defined() ? d_x.add(through_slope) : through_slope;
    }
    return {d_x};
  }
};

Tensor autograd(const Tensor& x) {
  check_defined(kName, "x", x);
  return CubeFunction::apply(x)[0];
}

}  // namespace

Tensor cube(const Tensor& x) {
  return call<cube>(kName, x);
}

}  // namespace example_ops

TORCH_LIBRARY_FRAGMENT(example_ops, m) {
  m.def("cube(Tensor x) -> Tensor");
  m.impl("cube", c10::DispatchKey::CPU, TORCH_FN(example_ops::kernel));
  m.impl("cube", c10::DispatchKey::CUDA, TORCH_FN(example_ops::kernel));
  m.impl("cube", c10::DispatchKey::Meta, TORCH_FN(example_ops::meta));
  m.impl("cube", c10::DispatchKey::Autograd, TORCH_FN(example_ops::autograd));
}
