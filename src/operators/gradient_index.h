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

/// Those of lltm::gru_backward.
struct GruGradient {
  enum Index : size_t { kInput, kWeightIh, kWeightHh, kBiasIh, kBiasHh, kH0, kCount };
};

/// The results of a backward operator: None where output_mask is false. They are optional because
/// AOTInductor does not accept an undefined tensor as a result of type Tensor.
template <size_t count>
using OptionalGradients = decltype(std::tuple_cat(std::array<std::optional<at::Tensor>, count>()));

/// The last flags of a mask: whether the gradients of the initial state are wanted.
template <size_t states, size_t count>
constexpr std::array<bool, states> state_mask(const std::array<bool, count>& output_mask) {
  std::array<bool, states> mask{};
  for (size_t i = 0; i < states; ++i) {
    mask[i] = output_mask[count - states + i];
  }
  return mask;
}

/// A gradient that is only computed if it is wanted.
template <typename Compute>
std::optional<at::Tensor> if_wanted(bool wanted, const Compute& compute) {
  return wanted ? std::optional<at::Tensor>(compute()) : std::nullopt;
}

}  // namespace lltm
