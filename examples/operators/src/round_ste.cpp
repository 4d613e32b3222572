// round_ste: a gradient of one's own choosing.
//
//   y = floor(x) + (x - floor(x) >= 0.5)      rounds half up, exactly
//   dx = dy                                   by decision, not by calculus
//
// The derivative of rounding is zero wherever it exists: a network with a rounding in it does not
// learn below it. The straight-through estimator passes the gradient on as if rounding were the
// identity. Nobody can derive that from the forward formula; an operator's Autograd kernel is the
// place to say it. (examples/operators/train.py shows both gradients at work.)
//
// An operator is a schema and a kernel per dispatch key, all registered at the end of the file. A
// call walks down the keys: Autograd, then CPU or CUDA, or Meta where only shapes are asked for.
#include "checks.h"
#include "elementwise_host.h"
#include "example_ops.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace example_ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::string_view kName = "example_ops::round_ste";

// CPU and CUDA: the result.
Tensor kernel(const Tensor& x) {
  check_dtype(kName, "x", x);
  return elementwise(RoundHalfUp{}, x);
}

// Meta: the result's shape, dtype and strides. torch.compile and torch.export call only this.
Tensor meta(const Tensor& x) {
  check_dtype(kName, "x", x);
  return elementwise_meta(x);
}

// Autograd: forward() runs the operator once more, below Autograd, where it reaches CPU or CUDA.
// What goes through the dispatcher is what torch.compile can record.
class RoundSTE : public torch::autograd::Function<RoundSTE> {
 public:
  // backward() reads nothing but its arguments and what was saved, so compiled autograd may trace
  // it.
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    ctx->set_materialize_grads(false);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return round_ste(x);
  }

  // One gradient per argument of forward(). Nothing was saved: the incoming gradient is enough. It
  // is undefined where nothing downstream depends on y, and it is passed on as that.
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
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow(kName.data(), "").typed<decltype(round_ste)>();
  return op.call(x);
}

}  // namespace example_ops

// A fragment, so that each operator of the library can stand in a file of its own.
TORCH_LIBRARY_FRAGMENT(example_ops, m) {
  m.def("round_ste(Tensor x) -> Tensor");
}

TORCH_LIBRARY_IMPL(example_ops, CPU, m) {
  m.impl("round_ste", TORCH_FN(example_ops::kernel));
}

TORCH_LIBRARY_IMPL(example_ops, CUDA, m) {
  m.impl("round_ste", TORCH_FN(example_ops::kernel));
}

TORCH_LIBRARY_IMPL(example_ops, Meta, m) {
  m.impl("round_ste", TORCH_FN(example_ops::meta));
}

TORCH_LIBRARY_IMPL(example_ops, Autograd, m) {
  m.impl("round_ste", TORCH_FN(example_ops::autograd));
}
