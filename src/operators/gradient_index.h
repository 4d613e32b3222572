// The gradients of the backward operators, in the order of their results and of output_mask.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
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

/// Whether the gradients of h0 and c0 are wanted, the last two of a sequence's.
template <size_t count>
constexpr std::array<bool, 2> state_mask(const std::array<bool, count>& output_mask) {
  return {output_mask[count - 2], output_mask[count - 1]};
}

/// A gradient that is only computed if it is wanted.
template <typename Compute>
std::optional<at::Tensor> if_wanted(bool wanted, const Compute& compute) {
  return wanted ? std::optional<at::Tensor>(compute()) : std::nullopt;
}

}  // namespace lltm
