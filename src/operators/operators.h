// All operators that take tensors. Code of the library calls and registers them by these structs;
// lltm.h has the functions for programs.
#pragma once

#include "../dispatch/operator.h"
#include "arguments.h"
#include "gradient_index.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>

namespace lltm {

/// new_h, new_cell, gates
using CellResults = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
/// output, h_n, c_n, cells, gates
using SequenceResults = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

/// output, h_n, gates
using GruResults = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// d_gates (T, N, gates), zero beyond a row's length, and the gradients of h0 and c0 where
/// requested.
using GateGradients = std::tuple<at::Tensor, std::optional<at::Tensor>, std::optional<at::Tensor>>;
/// The same with the gradient of h0 alone.
using OneStateGateGradients = std::tuple<at::Tensor, std::optional<at::Tensor>>;

/// The one or the other, by the number of states.
template <size_t states>
using GateGradientsOf = std::conditional_t<states == 2, GateGradients, OneStateGateGradients>;

/// From the gradients of h0 and c0. With one state, it is carried in the place of c0.
template <size_t states>
GateGradientsOf<states> gate_gradients_of(const at::Tensor& d_gates,
                                          const std::optional<at::Tensor>& d_h0,
                                          const std::optional<at::Tensor>& d_c0) {
  if constexpr (states == 2) {
    return {d_gates, d_h0, d_c0};
  } else {
    return {d_gates, d_c0};
  }
}

/// Whether the gradients of h0 and of c0 are wanted, by the same token.
template <size_t states>
constexpr std::array<bool, 2> both_states(const std::array<bool, states>& state_mask) {
  return {states == 2 && state_mask[0], state_mask[states - 1]};
}

namespace op {

struct Forward : Operator<Forward, CellResults, ForwardArguments> {
  static constexpr const char* kName = Arguments::kOperator;
};

/// Its last argument is output_mask.
struct Backward : Operator<Backward,
                           OptionalGradients<kGradientCount>,
                           BackwardArguments,
                           std::array<bool, kGradientCount>> {
  static constexpr const char* kName = Arguments::kOperator;
};

// The operators of a sequence take `reverse`, and then `keep` or a mask.

struct LltmSequence : Operator<LltmSequence, SequenceResults, LltmSequenceArguments, bool, bool> {
  static constexpr const char* kName = Arguments::kOperator;
};

struct LltmSequencePlan
    : Operator<LltmSequencePlan, std::string, LltmSequenceArguments, bool, bool> {
  static constexpr const char* kName = "lltm::sequence_plan";
};

struct LltmSequenceBackward : Operator<LltmSequenceBackward,
                                       OptionalGradients<LltmGradient::kCount>,
                                       LltmSequenceBackwardArguments,
                                       bool,
                                       std::array<bool, LltmGradient::kCount>> {
  static constexpr const char* kName = Arguments::kOperator;
};

struct Lstm : Operator<Lstm, SequenceResults, LstmArguments, bool, bool> {
  static constexpr const char* kName = Arguments::kOperator;
};

struct LstmPlan : Operator<LstmPlan, std::string, LstmArguments, bool, bool> {
  static constexpr const char* kName = "lltm::lstm_plan";
};

struct LstmBackward : Operator<LstmBackward,
                               OptionalGradients<LstmGradient::kCount>,
                               LstmBackwardArguments,
                               bool,
                               std::array<bool, LstmGradient::kCount>> {
  static constexpr const char* kName = Arguments::kOperator;
};

struct Gru : Operator<Gru, GruResults, GruArguments, bool, bool> {
  static constexpr const char* kName = Arguments::kOperator;
};

struct GruPlan : Operator<GruPlan, std::string, GruArguments, bool, bool> {
  static constexpr const char* kName = "lltm::gru_plan";
};

struct GruBackward : Operator<GruBackward,
                              OptionalGradients<GruGradient::kCount>,
                              GruBackwardArguments,
                              bool,
                              std::array<bool, GruGradient::kCount>> {
  static constexpr const char* kName = Arguments::kOperator;
};

// The part of the backward operators that runs step by step. Below torch.vmap, the batch of all
// examples is folded into one, but each example has gradients of its own with respect to the
// weights and the bias. They are sums over the rows of d_gates, so the batching rules take d_gates
// from these operators and compute the sums themselves. state_mask requests the gradients of the
// initial state. The operators are private: their schemas may change at any time.

struct LltmSequenceGateGradients : Operator<LltmSequenceGateGradients,
                                            GateGradients,
                                            LltmSequenceBackwardArguments,
                                            bool,
                                            std::array<bool, 2>> {
  static constexpr const char* kName = "lltm::_sequence_gate_gradients";
};

struct LstmGateGradients
    : Operator<LstmGateGradients, GateGradients, LstmBackwardArguments, bool, std::array<bool, 2>> {
  static constexpr const char* kName = "lltm::_lstm_gate_gradients";
};

struct GruGateGradients : Operator<GruGateGradients,
                                   OneStateGateGradients,
                                   GruBackwardArguments,
                                   bool,
                                   std::array<bool, 1>> {
  static constexpr const char* kName = "lltm::_gru_gate_gradients";
};

}  // namespace op

// The operators of a cell's sequences, and the names of their nodes in profiles.

struct LltmOperators {
  using Forward = op::LltmSequence;
  using Plan = op::LltmSequencePlan;
  using Backward = op::LltmSequenceBackward;
  using GateGradients = op::LltmSequenceGateGradients;
  static constexpr const char* kNode = "LltmSequenceBackward";
  static constexpr const char* kBackwardNode = "LltmSequenceBackwardBackward";
};

struct LstmOperators {
  using Forward = op::Lstm;
  using Plan = op::LstmPlan;
  using Backward = op::LstmBackward;
  using GateGradients = op::LstmGateGradients;
  static constexpr const char* kNode = "LltmLstmBackward";
  static constexpr const char* kBackwardNode = "LltmLstmBackwardBackward";
};

struct GruOperators {
  using Forward = op::Gru;
  using Plan = op::GruPlan;
  using Backward = op::GruBackward;
  using GateGradients = op::GruGateGradients;
  static constexpr const char* kNode = "LltmGruBackward";
  static constexpr const char* kBackwardNode = "LltmGruBackwardBackward";
};

/// Calls function.operator()<Operators>() for those of each cell: what registers an implementation.
template <typename Function>
void for_each_cell(const Function& function) {
  function.template operator()<LltmOperators>();
  function.template operator()<LstmOperators>();
  function.template operator()<GruOperators>();
}

}  // namespace lltm
