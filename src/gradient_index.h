// The five gradients of a backward operator, in the order of its results and of its output_mask.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace lltm {

enum Gradient { kInput, kWeights, kBias, kOldH, kOldCell, kGradientCount };

/// Of a sequence, the last two are those of its initial state.
constexpr Gradient kH0 = kOldH;
constexpr Gradient kC0 = kOldCell;

/// The results of a backward operator: None where the mask turns a gradient off. AOTInductor takes
/// no undefined tensor for a result whose type is Tensor.
using OptionalGradients = std::tuple<std::optional<at::Tensor>,
                                     std::optional<at::Tensor>,
                                     std::optional<at::Tensor>,
                                     std::optional<at::Tensor>,
                                     std::optional<at::Tensor>>;

/// std::nullopt for an undefined tensor.
inline std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

inline OptionalGradients optional_gradients(
    const std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>& gradients) {
  return std::apply(
      [](const auto&... tensors) { return OptionalGradients{if_defined(tensors)...}; }, gradients);
}

}  // namespace lltm
