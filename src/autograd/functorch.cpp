// vmap. The operations of the composite formula have batching rules, so the formula needs none of
// its own. The dispatcher calls these kernels before those of autocast, and the formula runs with
// autocast off, so the forward operators cast their arguments here.
#include "../checks.h"
#include "../dispatcher_kernel.h"
#include "../formula/cell.h"
#include "../formula/sequence.h"
#include "autocast.h"

#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace lltm {
namespace {

using at::Tensor;

bool is_autocast_on(c10::DeviceType device) {
  return at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device);
}

std::tuple<Tensor, Tensor, Tensor> forward_batched(const ForwardArguments& arguments) {
  check_defined(arguments);
  const auto& [input, weights, bias, old_h, old_cell] = arguments;
  const auto device = input.device().type();
  if (!is_autocast_on(device)) {
    return formula::forward(arguments);
  }
  const auto cast = autocast_on(device);
  return formula::forward({cast(input), cast(weights), cast(bias), cast(old_h), cast(old_cell)});
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> sequence_batched(
    const SequenceArguments& arguments, bool reverse, bool keep) {
  check_defined(arguments);
  const auto& [input, weights, bias, h0, c0, lengths, reset] = arguments;
  const auto device = input.device().type();
  if (!is_autocast_on(device)) {
    return formula::sequence(arguments, reverse, keep);
  }
  const auto cast = autocast_on(device);
  return formula::sequence(
      {cast(input), cast(weights), cast(bias), cast(h0), c0, lengths, reset}, reverse, keep);
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, FuncTorchBatched, m) {
  m.impl("forward", dispatcher_kernel<forward_batched, lltm::forward>());
  m.impl("backward", dispatcher_kernel<formula::backward, lltm::backward>());
  m.impl("sequence", dispatcher_kernel<sequence_batched, lltm::sequence>());
  m.impl("sequence_backward",
         dispatcher_kernel<formula::sequence_backward, lltm::sequence_backward>());
}

// The legacy vmap, which torch.autograd.grad(is_grads_batched=True) and gradcheck still use. Its
// fallback, a loop over the examples, does not support operators with optional results.
TORCH_LIBRARY_IMPL(lltm, Batched, m) {
  m.impl("backward", dispatcher_kernel<formula::backward, lltm::backward>());
  m.impl("sequence_backward",
         dispatcher_kernel<formula::sequence_backward, lltm::sequence_backward>());
}

}  // namespace lltm
