// The gradients of the backward operators, in the order of their results and of output_mask.
#pragma once

#include "../dispatch/optional_tensor.h"

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace lltm {

/// Those of lltm::backward and lltm::sequence_backward.
enum Gradient { kInput, kWeights, kBias, kOldH, kOldCell, kGradientCount };

/// For a sequence, the last two are the gradients of its initial state.
constexpr Gradient kH0 = kOldH;
constexpr Gradient kC0 = kOldCell;

/// Those of lltm::lstm_backward.
struct LstmGradient {
  enum Index { kInput, kWeightIh, kWeightHh, kBias, kH0, kC0, kCount };
};

/// The results of a backward operator: None where output_mask is false. They are optional because
/// AOTInductor does not accept an undefined tensor as a result of type Tensor.
using OptionalGradients = std::tuple<std::optional<at::Tensor>,
                                     std::optional<at::Tensor>,
                                     std::optional<at::Tensor>,
                                     std::optional<at::Tensor>,
                                     std::optional<at::Tensor>>;
using OptionalLstmGradients = std::tuple<std::optional<at::Tensor>,
                                         std::optional<at::Tensor>,
                                         std::optional<at::Tensor>,
                                         std::optional<at::Tensor>,
                                         std::optional<at::Tensor>,
                                         std::optional<at::Tensor>>;

/// A gradient that is only computed if it is wanted.
template <typename Compute>
std::optional<at::Tensor> if_wanted(bool wanted, const Compute& compute) {
  return wanted ? std::optional<at::Tensor>(compute()) : std::nullopt;
}

/// The results of a typed backward operator as those of the dispatcher's.
template <typename... Tensors>
std::tuple<std::optional<Tensors>...> optional_gradients(const std::tuple<Tensors...>& gradients) {
  return std::apply([](const auto&... tensors) { return std::tuple{if_defined(tensors)...}; },
                    gradients);
}

}  // namespace lltm
