// The math of the convolution and the batch norm, in plain ATen calls, for the operators in
// layers.cpp and conv2d_batch_norm.cpp. All of it runs below autograd.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <string_view>
#include <tuple>

namespace example_ops {

/// Checks input (N, C, H, W) and weight (O, C, KH, KW): they must have the same dtype, and the
/// kernel must not be larger than the image.
void check_convolution(std::string_view op, const at::Tensor& input, const at::Tensor& weight);

/// Checks input (N, C, H, W).
void check_image(std::string_view op, const at::Tensor& input);

/// Checks that there is more than one value per channel: the unbiased variance of one value is 0/0.
void check_enough_values(std::string_view op, const at::Tensor& images);

/// A valid convolution of stride 1: (N, O, H-KH+1, W-KW+1), contiguous.
at::Tensor convolve(const at::Tensor& input, const at::Tensor& weight);

/// The shape of convolve()'s result, for Meta kernels.
at::Tensor convolve_meta(const at::Tensor& input, const at::Tensor& weight);

/// d_input and d_weight. A gradient is undefined unless its flag in `wanted` is true.
std::tuple<at::Tensor, at::Tensor> convolve_backward(const at::Tensor& gradient,
                                                     const at::Tensor& input,
                                                     const at::Tensor& weight,
                                                     std::array<bool, 2> wanted);

/// Statistics per channel, (1, C, 1, 1), in the accumulation type.
struct ChannelStatistics {
  at::Tensor mean;
  at::Tensor deviation;  // the square root of the unbiased variance
};

ChannelStatistics channel_statistics(const at::Tensor& images);

/// (images - mean) / (deviation + eps).
at::Tensor normalize(const at::Tensor& images, const ChannelStatistics& statistics, double eps);

/// The gradient of the images, including the contributions of mean and deviation.
at::Tensor normalize_backward(const at::Tensor& gradient,
                              const at::Tensor& images,
                              const ChannelStatistics& statistics,
                              double eps);

/// Returns the gradients such that differentiating them again raises an error. Without it, a second
/// derivative would treat them as constants, and be silently wrong.
torch::autograd::variable_list not_differentiable_again(std::string_view op,
                                                        torch::autograd::variable_list gradients);

}  // namespace example_ops
