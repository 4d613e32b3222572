// conv2d and batch_norm2d: the two parts that conv2d_batch_norm is compared with. They teach
// nothing that the other files do not; what matters here is the formulas.
//
//   conv2d:        a valid convolution of stride 1 without bias
//   batch_norm2d:  y = (x - mean) / (sqrt(var) + eps), mean and unbiased var over N, H and W
//
// eps is outside of the square root. With d = sqrt(var) + eps and c = x - mean:
//
//   dx = (dy - mean(dy)) / d - c * sum(dy * c) * sqrt(var) / (d^2 * sum(c^2))
#include "layers.h"

#include "autocast.h"
#include "checks.h"
#include "example_ops.h"
#include "typed_call.h"

#include <ATen/OpMathType.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/library.h>

namespace example_ops {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

constexpr std::array<int64_t, 3> kAllButChannels{0, 2, 3};

// A copy in the accumulation type, which the caller may modify.
Tensor accumulated_copy(const Tensor& tensor) {
  return tensor.to(at::toOpMathType(tensor.scalar_type()), /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace

void check_image(std::string_view op, const Tensor& input) {
  check_dtype(op, "input", input);
  check_rank(op, "input", input, 4, "[batch, channels, height, width]");
}

void check_convolution(std::string_view op, const Tensor& input, const Tensor& weight) {
  constexpr std::string_view kWeightShape = "[out_channels, channels, kernel_height, kernel_width]";
  check_image(op, input);
  check_like(op, "weight", weight, "input", input);
  check_rank(op, "weight", weight, 4, kWeightShape);
  check_size(op, "weight", weight, 1, input.sym_size(1), kWeightShape);
  for (const int64_t dim : {2, 3}) {
    TORCH_SYM_CHECK(
        weight.sym_size(dim).sym_ge(1).sym_and(weight.sym_size(dim).sym_le(input.sym_size(dim))),
        op,
        ": expected a weight of shape ",
        kWeightShape,
        " whose kernel is not empty and fits into the image of size ",
        input.sym_sizes(),
        ", got ",
        weight.sym_sizes());
  }
}

void check_enough_values(std::string_view op, const Tensor& images) {
  TORCH_CHECK(
      images.size(0) * images.size(2) * images.size(3) != 1,
      op,
      ": expected more than one value per channel, whose variance is asked for, got images of "
      "shape ",
      images.sizes());
}

Tensor convolve(const Tensor& input, const Tensor& weight) {
  const WithoutAutocast without_autocast;
  // With contiguous arguments, the result is contiguous, as the Meta kernel says.
  return at::conv2d(input.contiguous(), weight.contiguous());
}

Tensor convolve_meta(const Tensor& input, const Tensor& weight) {
  return at::empty_symint({input.sym_size(0),
                           weight.sym_size(0),
                           input.sym_size(2) - weight.sym_size(2) + 1,
                           input.sym_size(3) - weight.sym_size(3) + 1},
                          input.options());
}

std::tuple<Tensor, Tensor> convolve_backward(const Tensor& gradient,
                                             const Tensor& input,
                                             const Tensor& weight,
                                             std::array<bool, 2> wanted) {
  const WithoutAutocast without_autocast;
  auto [d_input, d_weight, d_bias] = at::convolution_backward(gradient.contiguous(),
                                                              input.contiguous(),
                                                              weight.contiguous(),
                                                              /*bias_sizes=*/std::nullopt,
                                                              /*stride=*/{1, 1},
                                                              /*padding=*/{0, 0},
                                                              /*dilation=*/{1, 1},
                                                              /*transposed=*/false,
                                                              /*output_padding=*/{0, 0},
                                                              /*groups=*/1,
                                                              {wanted[0], wanted[1], false});
  return {d_input, d_weight};
}

ChannelStatistics channel_statistics(const Tensor& images) {
  if (images.sym_numel() == 0) {
    // There is nothing to normalize, and var_mean would warn.
    const auto options = images.options().dtype(at::toOpMathType(images.scalar_type()));
    const auto zeros = [&] { return at::zeros_symint({1, images.sym_size(1), 1, 1}, options); };
    return {zeros(), zeros()};
  }
  auto [variance, mean] = at::var_mean(images.to(at::toOpMathType(images.scalar_type())),
                                       at::OptionalIntArrayRef(kAllButChannels),
                                       /*correction=*/1,
                                       /*keepdim=*/true);
  return {mean, variance.sqrt_()};
}

Tensor normalize(const Tensor& images, const ChannelStatistics& statistics, double eps) {
  return accumulated_copy(images)
      .sub_(statistics.mean)
      .div_(statistics.deviation.add(eps))
      .to(images.scalar_type());
}

Tensor normalize_backward(const Tensor& gradient,
                          const Tensor& images,
                          const ChannelStatistics& statistics,
                          double eps) {
  const auto dtype = images.scalar_type();
  const auto& [mean, deviation] = statistics;
  const Tensor divisor = deviation.add(eps);
  Tensor centered = accumulated_copy(images).sub_(mean);
  Tensor d_images = accumulated_copy(gradient);
  const Tensor sum_of_squares = centered.square().sum(kAllButChannels, /*keepdim=*/true);
  // If all values of a channel are equal, centered is 0. Then so is its share, rather than 0/0.
  const Tensor share = d_images.mul(centered)
                           .sum(kAllButChannels, /*keepdim=*/true)
                           .div_(divisor)
                           .mul_(deviation.div(divisor))
                           .div_(sum_of_squares)
                           .masked_fill_(deviation.eq(0), 0);
  d_images.sub_(d_images.mean(kAllButChannels, /*keepdim=*/true)).div_(divisor);
  return d_images.sub_(centered.mul_(share)).to(dtype);
}

namespace {

/// Below autograd, the tangent of an incoming gradient would be lost without an error.
void refuse_tangent(std::string_view op, const Tensor& gradient) {
  TORCH_CHECK(!gradient._fw_grad(/*level=*/0).defined(),
              op,
              ": forward-mode differentiation of the backward is not implemented");
}

}  // namespace

variable_list not_differentiable_again(std::string_view op, variable_list gradients) {
  // In a backward pass, grad mode is on only with create_graph=True.
  if (!c10::GradMode::is_enabled()) {
    return gradients;
  }
  for (Tensor& gradient : gradients) {
    if (gradient.defined()) {
      gradient = gradient.detach().requires_grad_();
    }
  }
  const auto error = std::make_shared<torch::autograd::DelayedError>(
      c10::str(op, ": double backward is not implemented"), gradients.size());
  return (*error)(std::move(gradients));
}

namespace {

constexpr const char* kConv = "example_ops::conv2d";
constexpr const char* kNorm = "example_ops::batch_norm2d";

Tensor conv2d_kernel(const Tensor& input, const Tensor& weight) {
  check_convolution(kConv, input, weight);
  return convolve(input, weight);
}

Tensor conv2d_meta(const Tensor& input, const Tensor& weight) {
  check_convolution(kConv, input, weight);
  return convolve_meta(input, weight);
}

class Conv2d : public torch::autograd::Function<Conv2d> {
 public:
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* ctx, const Tensor& input, const Tensor& weight) {
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({input, weight});
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return example_ops::conv2d(input, weight);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (!gradients[0].defined()) {
      return variable_list(2);
    }
    refuse_tangent(kConv, gradients[0]);
    const variable_list saved = ctx->get_saved_variables();
    Tensor d_input;
    Tensor d_weight;
    {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      std::tie(d_input, d_weight) = convolve_backward(
          gradients[0], saved[0], saved[1], {ctx->needs_input_grad(0), ctx->needs_input_grad(1)});
    }
    return not_differentiable_again(kConv, {d_input, d_weight});
  }
};

Tensor conv2d_autograd(const Tensor& input, const Tensor& weight) {
  check_defined(kConv, "input", input);
  check_defined(kConv, "weight", weight);
  return Conv2d::apply(input, weight);
}

Tensor batch_norm2d_kernel(const Tensor& input, double eps) {
  check_image(kNorm, input);
  check_enough_values(kNorm, input);
  return normalize(input, channel_statistics(input), eps).contiguous();
}

Tensor batch_norm2d_meta(const Tensor& input, double /*eps*/) {
  check_image(kNorm, input);
  return at::empty_symint(input.sym_sizes(), input.options());
}

class BatchNorm2d : public torch::autograd::Function<BatchNorm2d> {
 public:
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* ctx, const Tensor& input, double eps) {
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({input});
    ctx->saved_data["eps"] = eps;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return batch_norm2d(input, eps);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (!gradients[0].defined()) {
      return variable_list(2);
    }
    refuse_tangent(kNorm, gradients[0]);
    const Tensor input = ctx->get_saved_variables()[0];
    Tensor d_input;
    {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      d_input = normalize_backward(
          gradients[0], input, channel_statistics(input), ctx->saved_data["eps"].toDouble());
    }
    return not_differentiable_again(kNorm, {d_input, Tensor()});
  }
};

Tensor batch_norm2d_autograd(const Tensor& input, double eps) {
  check_defined(kNorm, "input", input);
  return BatchNorm2d::apply(input, eps);
}

}  // namespace

Tensor conv2d(const Tensor& input, const Tensor& weight) {
  return call<conv2d>(kConv, input, weight);
}

Tensor batch_norm2d(const Tensor& input, double eps) {
  return call<batch_norm2d>(kNorm, input, eps);
}

}  // namespace example_ops

TORCH_LIBRARY_FRAGMENT(example_ops, m) {
  m.def("conv2d(Tensor input, Tensor weight) -> Tensor");
  m.def("batch_norm2d(Tensor input, float eps=1e-3) -> Tensor");
  m.impl("conv2d", c10::DispatchKey::CPU, TORCH_FN(example_ops::conv2d_kernel));
  m.impl("batch_norm2d", c10::DispatchKey::CPU, TORCH_FN(example_ops::batch_norm2d_kernel));
  m.impl("conv2d", c10::DispatchKey::CUDA, TORCH_FN(example_ops::conv2d_kernel));
  m.impl("batch_norm2d", c10::DispatchKey::CUDA, TORCH_FN(example_ops::batch_norm2d_kernel));
  m.impl("conv2d", c10::DispatchKey::Meta, TORCH_FN(example_ops::conv2d_meta));
  m.impl("batch_norm2d", c10::DispatchKey::Meta, TORCH_FN(example_ops::batch_norm2d_meta));
  m.impl("conv2d", c10::DispatchKey::Autograd, TORCH_FN(example_ops::conv2d_autograd));
  m.impl("batch_norm2d", c10::DispatchKey::Autograd, TORCH_FN(example_ops::batch_norm2d_autograd));
}
