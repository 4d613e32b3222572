// round_ste: a custom gradient.
//
//   y = floor(x) + (x - floor(x) >= 0.5)      rounds half up, exactly
//   dx = dy                                   by definition, not by calculus
//
// The derivative of rounding is zero wherever it exists, so the layers of a network below a
// rounding do not learn. The straight-through estimator passes the gradient on as if rounding were
// the identity. This cannot be derived from the forward formula; it is implemented in the
// operator's Autograd kernel. (examples/operators/train.py compares both gradients.)
//
// An operator is a schema and a kernel per dispatch key, all registered at the end of the file. A
// call passes through the keys: Autograd, then CPU or CUDA, or Meta where only shapes are needed.
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

constexpr const char* kName = "example_ops::round_ste";

// CPU and CUDA: computes the result.
Tensor kernel(const Tensor& x) {
  check_dtype(kName, "x", x);
  return elementwise(RoundHalfUp{}, x);
}

// Meta: the result's shape, dtype and strides. torch.compile and torch.export call only this
// kernel.
Tensor meta(const Tensor& x) {
  check_dtype(kName, "x", x);
  return elementwise_meta(x);
}

// Autograd: forward() calls the operator again, below Autograd, and reaches CPU or CUDA. Because
// the call goes through the dispatcher, torch.compile can record it.
class RoundSTE : public torch::autograd::Function<RoundSTE> {
 public:
  // backward() reads only its arguments and saved variables, so compiled autograd may trace it.
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    ctx->set_materialize_grads(false);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return round_ste(x);
  }

  // One gradient per argument of forward(). Nothing needs to be saved, because the incoming
  // gradient suffices. It is undefined if nothing downstream depends on y, and is passed on
  // unchanged.
  static variable_list backward(AutogradContext* /*ctx*/, const variable_list& gradients) {
    return {gradients[0]};
  }
};

Tensor autograd(const Tensor& x) {
  check_defined(kName, "x", x);
  return RoundSTE::apply(x);
}

}  // namespace

Tensor round_ste(const Tensor& x) {
  return call<round_ste>(kName, x);
}

}  // namespace example_ops

// A fragment, so that each operator of the library can have its own file.
TORCH_LIBRARY_FRAGMENT(example_ops, m) {
  m.def("round_ste(Tensor x) -> Tensor");
  m.impl("round_ste", c10::DispatchKey::CPU, TORCH_FN(example_ops::kernel));
  m.impl("round_ste", c10::DispatchKey::CUDA, TORCH_FN(example_ops::kernel));
  m.impl("round_ste", c10::DispatchKey::Meta, TORCH_FN(example_ops::meta));
  m.impl("round_ste", c10::DispatchKey::Autograd, TORCH_FN(example_ops::autograd));
}
