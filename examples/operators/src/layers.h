// The mathematics of the convolution and of the batch norm, in plain ATen calls, for the operators
// in layers.cpp and in conv2d_batch_norm.cpp. All of it runs below autograd.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <string_view>
#include <tuple>

namespace example_ops {

/// input (N, C, H, W), weight (O, C, KH, KW), both of one dtype, with a kernel no larger than the
/// image.
void check_convolution(std::string_view op, const at::Tensor& input, const at::Tensor& weight);

/// input (N, C, H, W).
void check_image(std::string_view op, const at::Tensor& input);

/// The unbiased variance of one value is 0/0.
void check_enough_values(std::string_view op, const at::Tensor& images);

/// A valid convolution of stride 1: (N, O, H-KH+1, W-KW+1), contiguous.
at::Tensor convolve(const at::Tensor& input, const at::Tensor& weight);

/// The shape of convolve()'s result, for Meta kernels.
at::Tensor convolve_meta(const at::Tensor& input, const at::Tensor& weight);

/// d_input and d_weight, each computed where `wanted` says so and undefined elsewhere.
std::tuple<at::Tensor, at::Tensor> convolve_backward(const at::Tensor& gradient,
                                                     const at::Tensor& input,
                                                     const at::Tensor& weight,
                                                     std::array<bool, 2> wanted);

/// Per channel, (1, C, 1, 1), in the type that 16-bit images are computed in.
struct ChannelStatistics {
  at::Tensor mean;
  at::Tensor deviation;  // the root of the unbiased variance
};

ChannelStatistics channel_statistics(const at::Tensor& images);

/// (images - mean) / (deviation + eps).
at::Tensor normalize(const at::Tensor& images, const ChannelStatistics& statistics, double eps);

/// The gradient of the images, through mean and deviation too.
at::Tensor normalize_backward(const at::Tensor& gradient,
                              const at::Tensor& images,
                              const ChannelStatistics& statistics,
                              double eps);

/// The gradients, and where somebody would differentiate them again, an error that says that this
/// is not implemented. Without it a second derivative would take them for constants, and be wrong
/// in silence.
torch::autograd::variable_list not_differentiable_again(std::string_view op,
                                                        torch::autograd::variable_list gradients);

}  // namespace example_ops
