// conv2d_batch_norm: trading time for memory by recomputation in the backward pass.
//
//   y = conv2d(input, weight)                        valid, stride 1, no bias
//   out = (y - mean(y)) / (sqrt(var(y)) + eps)       per channel, unbiased, eps outside the root
//
// With two operators, autograd keeps y, the largest tensor of the layer, from the forward pass to
// the backward pass, for every layer of the network. With a single operator it does not have to:
// the backward pass recomputes y from input and weight, which are alive anyway. That costs one more
// convolution, and only one layer's y is in memory at a time. In addition, the operator keeps two
// numbers per channel.
//
// There are two rules. The recomputation must give the same numbers, so a random or in-place
// forward pass needs more care than this one. And the backward pass must be a separate operator: if
// it were written as ATen calls, torch.compile's partitioner would see an expensive convolution of
// forward inputs, and move it to the forward pass to keep the result.
#include "checks.h"
#include "example_ops.h"
#include "layers.h"
#include "typed_call.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace example_ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kName = "example_ops::conv2d_batch_norm";

// The operator has one output, but backward needs mean and deviation. It is therefore a thin
// wrapper of an operator that returns all three, as ATen's batch_norm is of native_batch_norm.
using Outputs = std::tuple<Tensor, Tensor, Tensor>;

Outputs call_with_statistics(const Tensor& input, const Tensor& weight, double eps) {
  return call<call_with_statistics>("example_ops::_conv2d_batch_norm", input, weight, eps);
}

std::tuple<Tensor, Tensor> call_backward(const Tensor& gradient,
                                         const Tensor& input,
                                         const Tensor& weight,
                                         const Tensor& mean,
                                         const Tensor& deviation,
                                         double eps,
                                         std::array<bool, 2> wanted) {
  return call<call_backward>("example_ops::_conv2d_batch_norm_backward",
                             gradient,
                             input,
                             weight,
                             mean,
                             deviation,
                             eps,
                             wanted);
}

// CPU and CUDA.
Outputs kernel(const Tensor& input, const Tensor& weight, double eps) {
  check_convolution(kName, input, weight);
  const Tensor y = convolve(input, weight);
  check_enough_values(kName, y);
  const ChannelStatistics statistics = channel_statistics(y);
  return {normalize(y, statistics, eps), statistics.mean, statistics.deviation};
}

std::tuple<Tensor, Tensor> backward_kernel(const Tensor& gradient,
                                           const Tensor& input,
                                           const Tensor& weight,
                                           const Tensor& mean,
                                           const Tensor& deviation,
                                           double eps,
                                           std::array<bool, 2> wanted) {
  const Tensor d_y = normalize_backward(gradient, convolve(input, weight), {mean, deviation}, eps);
  return convolve_backward(d_y, input, weight, wanted);
}

Outputs meta(const Tensor& input, const Tensor& weight, double /*eps*/) {
  check_convolution(kName, input, weight);
  const auto statistics_dtype = input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto statistics = [&] {
    return at::empty_symint({1, weight.sym_size(0), 1, 1}, input.options().dtype(statistics_dtype));
  };
  return {convolve_meta(input, weight), statistics(), statistics()};
}

std::tuple<Tensor, Tensor> backward_meta(const Tensor& /*gradient*/,
                                         const Tensor& input,
                                         const Tensor& weight,
                                         const Tensor& /*mean*/,
                                         const Tensor& /*deviation*/,
                                         double /*eps*/,
                                         std::array<bool, 2> wanted) {
  const auto like = [](const Tensor& tensor) {
    return at::empty_symint(tensor.sym_sizes(), tensor.options());
  };
  return {wanted[0] ? like(input) : Tensor(), wanted[1] ? like(weight) : Tensor()};
}

class Conv2dBatchNorm : public torch::autograd::Function<Conv2dBatchNorm> {
 public:
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* ctx,
                        const Tensor& input,
                        const Tensor& weight,
                        double eps) {
    ctx->set_materialize_grads(false);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [out, mean, deviation] = call_with_statistics(input, weight, eps);
    ctx->save_for_backward({input, weight, mean, deviation});
    ctx->saved_data["eps"] = eps;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (!gradients[0].defined()) {
      return variable_list(3);
    }
    const variable_list saved = ctx->get_saved_variables();
    auto [d_input, d_weight] = call_backward(gradients[0],
                                             saved[0],
                                             saved[1],
                                             saved[2],
                                             saved[3],
                                             ctx->saved_data["eps"].toDouble(),
                                             {ctx->needs_input_grad(0), ctx->needs_input_grad(1)});
    return not_differentiable_again(kName, {d_input, d_weight, Tensor()});
  }
};

Tensor without_statistics(const Tensor& input, const Tensor& weight, double eps) {
  return std::get<0>(call_with_statistics(input, weight, eps));
}

Tensor autograd(const Tensor& input, const Tensor& weight, double eps) {
  check_defined(kName, "input", input);
  check_defined(kName, "weight", weight);
  return Conv2dBatchNorm::apply(input, weight, eps);
}

}  // namespace

Tensor conv2d_batch_norm(const Tensor& input, const Tensor& weight, double eps) {
  return call<conv2d_batch_norm>(kName, input, weight, eps);
}

}  // namespace example_ops

TORCH_LIBRARY_FRAGMENT(example_ops, m) {
  m.def("conv2d_batch_norm(Tensor input, Tensor weight, float eps=1e-3) -> Tensor");
  m.def(
      "_conv2d_batch_norm(Tensor input, Tensor weight, float eps)"
      " -> (Tensor out, Tensor mean, Tensor deviation)");
  m.def(
      "_conv2d_batch_norm_backward(Tensor gradient, Tensor input, Tensor weight, Tensor mean,"
      " Tensor deviation, float eps, bool[2] wanted) -> (Tensor d_input, Tensor d_weight)");
  // For every device, below Autograd: the operator that it calls has a kernel for each device.
  m.impl("conv2d_batch_norm",
         c10::DispatchKey::CompositeExplicitAutograd,
         TORCH_FN(example_ops::without_statistics));
  m.impl("_conv2d_batch_norm", c10::DispatchKey::CPU, TORCH_FN(example_ops::kernel));
  m.impl(
      "_conv2d_batch_norm_backward", c10::DispatchKey::CPU, TORCH_FN(example_ops::backward_kernel));
  m.impl("_conv2d_batch_norm", c10::DispatchKey::CUDA, TORCH_FN(example_ops::kernel));
  m.impl("_conv2d_batch_norm_backward",
         c10::DispatchKey::CUDA,
         TORCH_FN(example_ops::backward_kernel));
  m.impl("_conv2d_batch_norm", c10::DispatchKey::Meta, TORCH_FN(example_ops::meta));
  m.impl(
      "_conv2d_batch_norm_backward", c10::DispatchKey::Meta, TORCH_FN(example_ops::backward_meta));
  m.impl("conv2d_batch_norm", c10::DispatchKey::Autograd, TORCH_FN(example_ops::autograd));
}
