// The backward operators of a sequence and their private siblings under the Autograd key.
#include "../dispatch/argument_list.h"
#include "../formula/backward.h"
#include "../formula/double_backward.h"
#include "../operators/checks.h"
#include "../operators/gradient_index.h"
#include "../operators/operators.h"
#include "differentiation.h"
#include "node.h"
#include "recorded_call.h"

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <array>
#include <type_traits>

namespace lltm {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// For each operator, the name of its node and, by name, the gradients that enter it.

struct BackwardOfLltm {
  using Op = op::LltmSequenceBackward;
  static constexpr const char* kNode = "LltmSequenceBackwardBackward";

  static formula::GradientsOfGradients by_name(const variable_list& gradients) {
    return {.input = gradients[LltmGradient::kInput],
            .weights = gradients[LltmGradient::kWeights],
            .bias = gradients[LltmGradient::kBias],
            .h0 = gradients[LltmGradient::kH0],
            .c0 = gradients[LltmGradient::kC0]};
  }
};

struct BackwardOfLstm {
  using Op = op::LstmBackward;
  static constexpr const char* kNode = "LltmLstmBackwardBackward";

  static formula::GradientsOfGradients by_name(const variable_list& gradients) {
    return {.input = gradients[LstmGradient::kInput],
            .weight_ih = gradients[LstmGradient::kWeightIh],
            .weight_hh = gradients[LstmGradient::kWeightHh],
            .bias = gradients[LstmGradient::kBias],
            .h0 = gradients[LstmGradient::kH0],
            .c0 = gradients[LstmGradient::kC0]};
  }
};

struct BackwardOfGru {
  using Op = op::GruBackward;
  static constexpr const char* kNode = "LltmGruBackwardBackward";

  static formula::GradientsOfGradients by_name(const variable_list& gradients) {
    return {.input = gradients[GruGradient::kInput],
            .weight_ih = gradients[GruGradient::kWeightIh],
            .weight_hh = gradients[GruGradient::kWeightHh],
            .bias = gradients[GruGradient::kBiasIh],
            .bias_hh = gradients[GruGradient::kBiasHh],
            .h0 = gradients[GruGradient::kH0]};
  }
};

template <typename GateGradientsOp>
struct BackwardOfGates {
  using Op = GateGradientsOp;
  static constexpr const char* kNode = "LltmGateGradientsBackward";

  static formula::GradientsOfGradients by_name(const variable_list& gradients) {
    // Of h0 and c0, or of h0 alone.
    return {.gates = gradients[0],
            .h0 = gradients[1],
            .c0 = gradients.size() > 2 ? gradients[2] : Tensor()};
  }
};

/// The node. It computes nothing until it runs, because most graphs of gradients are never
/// differentiated: torch.func.grad always records one.
template <typename Backward>
struct DoubleBackward {
  using Op = typename Backward::Op;
  static constexpr const char* kName = Backward::kNode;
  static constexpr bool is_traceable = false;

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (!any_defined(gradients)) {
      return variable_list(number_differentiable<Op>());
    }
    const auto saved = saved_list<Op::kTensors>(*ctx);
    return formula::double_backward(pack_arguments<typename Op::Arguments>(saved),
                                    ctx->saved_data[kReverse].toBool(),
                                    Backward::by_name(gradients));
  }
};

/// Calls the operator, or its formula if the call needs forward-mode AD.
template <typename Backward, typename Mask>
typename Backward::Op::Results backward_autograd(const typename Backward::Op::Arguments& arguments,
                                                 bool reverse,
                                                 Mask mask) {
  using Op = typename Backward::Op;
  check_defined(arguments);
  if (any_has_tangent<Op>(arguments)) {
    if constexpr (std::tuple_size_v<typename Op::Results> <= std::tuple_size_v<GateGradients>) {
      return formula::gate_gradients(arguments, reverse, mask);
    } else {
      return formula::sequence_backward(arguments, reverse, mask);
    }
  }
  return recorded_call<Op, DoubleBackward<Backward>>(
      arguments, {{kReverse, reverse}}, reverse, mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, Autograd, m) {
  using namespace op;
  m.impl("sequence_backward", LltmSequenceBackward::kernel<backward_autograd<BackwardOfLltm>>());
  m.impl("_sequence_gate_gradients",
         LltmSequenceGateGradients::kernel<
             backward_autograd<BackwardOfGates<LltmSequenceGateGradients>>>());
  m.impl("lstm_backward", LstmBackward::kernel<backward_autograd<BackwardOfLstm>>());
  m.impl("_lstm_gate_gradients",
         LstmGateGradients::kernel<backward_autograd<BackwardOfGates<LstmGateGradients>>>());
  m.impl("gru_backward", GruBackward::kernel<backward_autograd<BackwardOfGru>>());
  m.impl("_gru_gate_gradients",
         GruGateGradients::kernel<backward_autograd<BackwardOfGates<GruGateGradients>>>());
}

}  // namespace lltm
