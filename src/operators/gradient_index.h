// The gradients of the backward operators, in the order of their results and of output_mask.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <optional>
#include <tuple>

namespace lltm {

/// Those of lltm::backward.
enum Gradient { kInput, kWeights, kBias, kOldH, kOldCell, kGradientCount };

/// Those of the backward operator of a sequence, with those of its weights, one or two, from
/// kWeights on.
template <size_t count>
struct SequenceGradient {
  enum Index : size_t { kInput, kWeights, kBias = count - 3, kH0, kC0, kCount };
};

/// Those of lltm::sequence_backward.
using LltmGradient = SequenceGradient<5>;

/// Those of lltm::lstm_backward.
struct LstmGradient : SequenceGradient<6> {
  static constexpr size_t kWeightIh = kWeights;
  static constexpr size_t kWeightHh = kWeights + 1;
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

/// Whether the gradients of h0 and c0 are wanted.
template <size_t count>
constexpr std::array<bool, 2> state_mask(const std::array<bool, count>& output_mask) {
  using Index = SequenceGradient<count>;
  return {output_mask[Index::kH0], output_mask[Index::kC0]};
}

/// A gradient that is only computed if it is wanted.
template <typename Compute>
std::optional<at::Tensor> if_wanted(bool wanted, const Compute& compute) {
  return wanted ? std::optional<at::Tensor>(compute()) : std::nullopt;
}

}  // namespace lltm
