// vmap: the composite formula's operations have batching rules, so it needs none of its own. The
// dispatcher comes here before it comes to autocast, and the formula runs with autocast off, so
// forward makes the casts itself.
#include "../checks.h"
#include "../formula/cell.h"
#include "autocast.h"

#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace lltm {
namespace {

using at::Tensor;

bool is_autocast_on(c10::DeviceType device) {
  return at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device);
}

std::tuple<Tensor, Tensor, Tensor> forward_batched(const Tensor& input,
                                                   const Tensor& weights,
                                                   const std::optional<Tensor>& bias,
                                                   const Tensor& old_h,
                                                   const Tensor& old_cell) {
  check_defined(ForwardArguments{input, weights, bias, old_h, old_cell});
  const auto device = input.device().type();
  if (!is_autocast_on(device)) {
    return formula::forward(input, weights, bias, old_h, old_cell);
  }
  const auto cast = autocast_on(device);
  return formula::forward(cast(input), cast(weights), cast(bias), cast(old_h), cast(old_cell));
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, FuncTorchBatched, m) {
  m.impl("forward", TORCH_FN(forward_batched));
  m.impl("backward", TORCH_FN(formula::backward));
}

// The older vmap, which torch.autograd.grad(is_grads_batched=True) and gradcheck still run on. Its
// own fallback loops over the examples, but takes no operator with optional results.
TORCH_LIBRARY_IMPL(lltm, Batched, m) {
  m.impl("backward", TORCH_FN(formula::backward));
}

}  // namespace lltm
