// An operator with the signature, the dispatch keys and the autograd node of lltm::forward that
// only allocates its results, on any device: a lower bound for the time of a call.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

namespace {

using at::Tensor;
using ForwardResult = std::tuple<Tensor, Tensor, Tensor>;
using BackwardResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

ForwardResult forward(const Tensor& input,
                      const Tensor& weights,
                      const std::optional<Tensor>& /*bias*/,
                      const Tensor& /*old_h*/,
                      const Tensor& /*old_cell*/) {
  const int64_t batch = input.size(0);
  const int64_t gates = weights.size(0);
  return {at::empty({batch, gates / 3}, input.options()),
          at::empty({batch, gates / 3}, input.options()),
          at::empty({batch, gates}, input.options())};
}

BackwardResult backward(const Tensor& input, const Tensor& weights, const Tensor& old_h) {
  return {at::empty(input.sizes(), input.options()),
          at::empty(weights.sizes(), input.options()),
          at::empty({weights.size(0)}, input.options()),
          at::empty(old_h.sizes(), input.options()),
          at::empty(old_h.sizes(), input.options())};
}

ForwardResult call_forward(const Tensor& input,
                           const Tensor& weights,
                           const std::optional<Tensor>& bias,
                           const Tensor& old_h,
                           const Tensor& old_cell) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lltm_peers::empty_forward", "")
                             .typed<decltype(forward)>();
  return op.call(input, weights, bias, old_h, old_cell);
}

BackwardResult call_backward(const Tensor& input, const Tensor& weights, const Tensor& old_h) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lltm_peers::empty_backward", "")
                             .typed<decltype(backward)>();
  return op.call(input, weights, old_h);
}

class EmptyCell : public torch::autograd::Function<EmptyCell> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx,
                                                const Tensor& input,
                                                const Tensor& weights,
                                                const std::optional<Tensor>& bias,
                                                const Tensor& old_h,
                                                const Tensor& old_cell) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    auto [new_h, new_cell, gates] = call_forward(input, weights, bias, old_h, old_cell);
    ctx->set_materialize_grads(false);
    ctx->mark_non_differentiable({gates});
    ctx->save_for_backward({input, weights, old_h, new_cell, gates});
    return {new_h, new_cell, gates};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& /*grads*/) {
    const auto saved = ctx->get_saved_variables();
    auto [d_input, d_weights, d_bias, d_old_h, d_old_cell] =
        call_backward(saved[0], saved[1], saved[2]);
    return {d_input, d_weights, d_bias, d_old_h, d_old_cell};
  }
};

ForwardResult autograd_forward(const Tensor& input,
                               const Tensor& weights,
                               const std::optional<Tensor>& bias,
                               const Tensor& old_h,
                               const Tensor& old_cell) {
  const bool requires_grad =
      at::GradMode::is_enabled() &&
      (input.requires_grad() || weights.requires_grad() || (bias && bias->requires_grad()) ||
       old_h.requires_grad() || old_cell.requires_grad());
  if (!requires_grad) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return call_forward(input, weights, bias, old_h, old_cell);
  }
  auto results = EmptyCell::apply(input, weights, bias, old_h, old_cell);
  return {results[0], results[1], results[2]};
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm_peers, CPU, m) {
  m.impl("empty_forward", TORCH_FN(forward));
  m.impl("empty_backward", TORCH_FN(backward));
}

TORCH_LIBRARY_IMPL(lltm_peers, CUDA, m) {
  m.impl("empty_forward", TORCH_FN(forward));
  m.impl("empty_backward", TORCH_FN(backward));
}

TORCH_LIBRARY_IMPL(lltm_peers, Autograd, m) {
  m.impl("empty_forward", TORCH_FN(autograd_forward));
}
