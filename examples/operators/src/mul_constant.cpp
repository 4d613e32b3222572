// mul_constant: an argument that is not a tensor, and gradients that are not materialized.
//
//   y = constant * x
//   dx = constant * dy         the constant has no gradient
//
// A float in the schema is a double in C++ (an int is an int64_t, a bool a bool), whatever the
// dtype of the tensors. The kernel rounds it once, to the type it computes in.
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

constexpr const char* kName = "example_ops::mul_constant";

Tensor kernel(const Tensor& x, double constant) {
  check_dtype(kName, "x", x);
  return elementwise(MultiplyBy{constant}, x);
}

Tensor meta(const Tensor& x, double /*constant*/) {
  check_dtype(kName, "x", x);
  return elementwise_meta(x);
}

class MulConstant : public torch::autograd::Function<MulConstant> {
 public:
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* ctx, const Tensor& x, double constant) {
    // If y has no incoming gradient, autograd represents it by an undefined tensor. By default, a
    // Function gets zeros instead: memory of the size of y is needlessly written, multiplied and
    // accumulated, and x.grad becomes zeros where it should stay None. An optimizer with momentum
    // or weight decay moves a parameter whose gradient is zeros, but not one whose gradient is
    // None.
    ctx->set_materialize_grads(false);
    // Values other than tensors are stored in saved_data. x is not needed, and is not kept alive.
    ctx->saved_data["constant"] = constant;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return mul_constant(x, constant);
  }

  // One entry per argument of forward(); for arguments that are not tensors, an undefined tensor.
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const Tensor& gradient = gradients[0];
    if (!gradient.defined()) {
      return {Tensor(), Tensor()};
    }
    return {mul_constant(gradient, ctx->saved_data["constant"].toDouble()), Tensor()};
  }
};

Tensor autograd(const Tensor& x, double constant) {
  check_defined(kName, "x", x);
  return MulConstant::apply(x, constant);
}

}  // namespace

Tensor mul_constant(const Tensor& x, double constant) {
  return call<mul_constant>(kName, x, constant);
}

}  // namespace example_ops

TORCH_LIBRARY_FRAGMENT(example_ops, m) {
  m.def("mul_constant(Tensor x, float constant) -> Tensor");
  m.impl("mul_constant", c10::DispatchKey::CPU, TORCH_FN(example_ops::kernel));
  m.impl("mul_constant", c10::DispatchKey::CUDA, TORCH_FN(example_ops::kernel));
  m.impl("mul_constant", c10::DispatchKey::Meta, TORCH_FN(example_ops::meta));
  m.impl("mul_constant", c10::DispatchKey::Autograd, TORCH_FN(example_ops::autograd));
}
