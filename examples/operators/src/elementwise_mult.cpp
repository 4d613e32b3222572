// elementwise_mult: a correct first CUDA kernel.
//
//   y = a * b          a and b agree in shape, dtype and device: nothing is broadcast or cast
//   da = b * dy        db = a * dy
//
// The lesson is in three places. elementwise.cpp is the host function: device guard, allocation,
// empty tensors, contiguous copies, launch. elementwise.cu is the kernel and its launch: current
// stream, launch check, 64-bit index, tail, vectorized loads. This file has what is specific to the
// operator: its argument checks, and a backward pass that computes only the required gradients.
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

constexpr const char* kName = "example_ops::elementwise_mult";

// Runs before anything is computed: if b were smaller than a, the kernel would read past its end.
void check(const Tensor& a, const Tensor& b) {
  check_dtype(kName, "a", a);
  check_like(kName, "b", b, "a", a);
  TORCH_CHECK(a.dim() == b.dim(),
              kName,
              ": expected b of a's shape ",
              a.sym_sizes(),
              ", got ",
              b.sym_sizes());
  for (int64_t dim = 0; dim < a.dim(); ++dim) {
    TORCH_SYM_CHECK(a.sym_size(dim).sym_eq(b.sym_size(dim)),
                    kName,
                    ": expected b of a's shape ",
                    a.sym_sizes(),
                    ", got ",
                    b.sym_sizes());
  }
}

Tensor kernel(const Tensor& a, const Tensor& b) {
  check(a, b);
  return elementwise(Multiply{}, a, b);
}

Tensor meta(const Tensor& a, const Tensor& b) {
  check(a, b);
  return elementwise_meta(a);
}

class ElementwiseMult : public torch::autograd::Function<ElementwiseMult> {
 public:
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* ctx, const Tensor& a, const Tensor& b) {
    ctx->set_materialize_grads(false);
    // Use save_for_backward, never a member or saved_data: this way autograd detects in-place
    // changes between forward and backward, and there is no reference cycle.
    ctx->save_for_backward({a, b});
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return elementwise_mult(a, b);
  }

  // Each product calls the operator itself, through Autograd again. That makes second and higher
  // derivatives correct. The gradient may have any strides: all strides of sum()'s gradient are 0.
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const Tensor& gradient = gradients[0];
    Tensor d_a;
    Tensor d_b;
    if (gradient.defined()) {
      const variable_list saved = ctx->get_saved_variables();
      if (ctx->needs_input_grad(0)) {
        d_a = elementwise_mult(saved[1], gradient);
      }
      if (ctx->needs_input_grad(1)) {
        d_b = elementwise_mult(saved[0], gradient);
      }
    }
    return {d_a, d_b};
  }
};

Tensor autograd(const Tensor& a, const Tensor& b) {
  check_defined(kName, "a", a);
  check_defined(kName, "b", b);
  return ElementwiseMult::apply(a, b);
}

}  // namespace

Tensor elementwise_mult(const Tensor& a, const Tensor& b) {
  return call<elementwise_mult>(kName, a, b);
}

}  // namespace example_ops

TORCH_LIBRARY_FRAGMENT(example_ops, m) {
  m.def("elementwise_mult(Tensor a, Tensor b) -> Tensor");
  m.impl("elementwise_mult", c10::DispatchKey::CPU, TORCH_FN(example_ops::kernel));
  m.impl("elementwise_mult", c10::DispatchKey::CUDA, TORCH_FN(example_ops::kernel));
  m.impl("elementwise_mult", c10::DispatchKey::Meta, TORCH_FN(example_ops::meta));
  m.impl("elementwise_mult", c10::DispatchKey::Autograd, TORCH_FN(example_ops::autograd));
}
