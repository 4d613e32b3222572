// vmap. The operations of the composite formula have batching rules, so the formula needs none of
// its own. The dispatcher calls these kernels before those of autocast, and the formula runs with
// autocast off, so the forward operators cast their arguments here.
#include "../checks.h"
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

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> sequence_batched(
    const Tensor& input,
    const Tensor& weights,
    const std::optional<Tensor>& bias,
    const std::optional<Tensor>& h0,
    const std::optional<Tensor>& c0,
    const std::optional<Tensor>& lengths,
    const std::optional<Tensor>& reset,
    bool reverse,
    bool keep) {
  const SequenceArguments arguments{input, weights, bias, h0, c0, lengths, reset};
  check_defined(arguments);
  const auto device = input.device().type();
  if (!is_autocast_on(device)) {
    return formula::sequence(arguments, reverse, keep);
  }
  const auto cast = autocast_on(device);
  return formula::sequence(
      {cast(input), cast(weights), cast(bias), cast(h0), c0, lengths, reset}, reverse, keep);
}

OptionalGradients sequence_backward_batched(const std::optional<Tensor>& grad_output,
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
  return formula::sequence_backward({grad_output,
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
                                     reset},
                                    reverse,
                                    output_mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, FuncTorchBatched, m) {
  m.impl("forward", TORCH_FN(forward_batched));
  m.impl("backward", TORCH_FN(formula::backward));
  m.impl("sequence", TORCH_FN(sequence_batched));
  m.impl("sequence_backward", TORCH_FN(sequence_backward_batched));
}

// The legacy vmap, which torch.autograd.grad(is_grads_batched=True) and gradcheck still use. Its
// fallback, a loop over the examples, does not support operators with optional results.
TORCH_LIBRARY_IMPL(lltm, Batched, m) {
  m.impl("backward", TORCH_FN(formula::backward));
  m.impl("sequence_backward", TORCH_FN(sequence_backward_batched));
}

}  // namespace lltm
