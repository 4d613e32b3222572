// lltm::sequence_backward, lltm::lstm_backward and their private siblings under the Autograd key.
#include "../dispatch/argument_list.h"
#include "../dispatch/dispatcher_kernel.h"
#include "../dispatch/optional_tensor.h"
#include "../formula/backward.h"
#include "../formula/double_backward.h"
#include "../operators/checks.h"
#include "../operators/gate_gradients.h"
#include "../operators/gradient_index.h"
#include "differentiation.h"
#include "lltm/lltm.h"
#include "node.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <array>
#include <tuple>
#include <utility>

namespace lltm {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The arguments that have a gradient, in the order of formula::double_backward().
auto differentiable(const SequenceBackwardArguments& a) {
  return std::tie(a.grad_output,
                  a.grad_h_n,
                  a.grad_c_n,
                  a.grad_cells,
                  a.output,
                  a.cells,
                  a.input,
                  a.weights,
                  a.bias,
                  a.h0);
}
auto differentiable(const LstmBackwardArguments& a) {
  return std::tie(a.grad_output,
                  a.grad_h_n,
                  a.grad_c_n,
                  a.grad_cells,
                  a.output,
                  a.cells,
                  a.input,
                  a.weight_ih,
                  a.weight_hh,
                  a.bias,
                  a.h0,
                  a.c0);
}

/// The node of an operator with these arguments. It computes nothing until it runs, because most
/// graphs of gradients are never differentiated: torch.func.grad always records one.
template <typename Operator>
struct DoubleBackward {
  using Arguments = typename Operator::Arguments;
  static constexpr const char* kName = Operator::kName;
  static constexpr bool is_traceable = false;

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (!any_defined(gradients)) {
      return variable_list(std::tuple_size_v<decltype(differentiable(std::declval<Arguments>()))>);
    }
    const auto saved =
        saved_list<std::tuple_size_v<decltype(std::declval<Arguments>().tensors())>>(*ctx);
    return formula::double_backward(arguments_in<Arguments>(saved),
                                    ctx->saved_data[kReverse].toBool(),
                                    Operator::of_results(gradients));
  }
};

/// Calls the operator, or its formula if the call needs forward-mode AD.
template <typename Operator>
auto autograd_kernel(const typename Operator::Arguments& arguments,
                     bool reverse,
                     typename Operator::Mask mask) {
  check_defined(arguments);
  const auto inputs = differentiable(arguments);
  const auto has_tangent = [](const auto&... tensors) { return any_has_tangent(tensors...); };
  if (std::apply(has_tangent, inputs)) {
    return Operator::formula(arguments, reverse, mask);
  }
  const auto requires_grad = [](const auto&... tensors) { return any_requires_grad(tensors...); };
  const bool records = std::apply(requires_grad, inputs);
  if (records) {
    check<c10::SymInt>(arguments);  // as in backward.cpp
  }
  const auto list = list_of(arguments);
  auto results = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return Operator::compute(list, reverse, mask);
  }();
  if (records) {
    save(record_node<DoubleBackward<Operator>>(
             variables(inputs), variables(results), {{kReverse, reverse}}),
         variables(list));
  }
  return results;
}

struct SequenceBackwardOperator {
  using Arguments = SequenceBackwardArguments;
  static constexpr const char* kName = "LltmSequenceBackwardBackward";
  using Mask = std::array<bool, 5>;
  static constexpr auto formula = formula::sequence_backward;

  template <typename List>
  static OptionalGradients compute(const List& list, bool reverse, Mask mask) {
    return optional_gradients(call(lltm::sequence_backward, list, reverse, mask));
  }
  static formula::GradientsOfGradients of_results(const variable_list& gradients) {
    return {.input = gradients[kInput],
            .weights = gradients[kWeights],
            .bias = gradients[kBias],
            .h0 = gradients[kH0],
            .c0 = gradients[kC0]};
  }
};

struct LstmBackwardOperator {
  using Arguments = LstmBackwardArguments;
  static constexpr const char* kName = "LltmLstmBackwardBackward";
  using Mask = std::array<bool, 6>;
  static constexpr auto formula = formula::lstm_backward;

  template <typename List>
  static OptionalLstmGradients compute(const List& list, bool reverse, Mask mask) {
    return optional_gradients(call(lltm::lstm_backward, list, reverse, mask));
  }
  static formula::GradientsOfGradients of_results(const variable_list& gradients) {
    return {.input = gradients[LstmGradient::kInput],
            .weight_ih = gradients[LstmGradient::kWeightIh],
            .weight_hh = gradients[LstmGradient::kWeightHh],
            .bias = gradients[LstmGradient::kBias],
            .h0 = gradients[LstmGradient::kH0],
            .c0 = gradients[LstmGradient::kC0]};
  }
};

template <typename BackwardArguments, auto typed_operator>
struct GateGradientsOperator {
  using Arguments = BackwardArguments;
  static constexpr const char* kName = "LltmGateGradientsBackward";
  using Mask = std::array<bool, 2>;

  static GateGradients formula(const Arguments& arguments, bool reverse, Mask mask) {
    return formula::gate_gradients(arguments, reverse, mask);
  }
  template <typename List>
  static GateGradients compute(const List& list, bool reverse, Mask mask) {
    return call(typed_operator, list, reverse, mask);
  }
  static formula::GradientsOfGradients of_results(const variable_list& gradients) {
    return {.gates = gradients[0], .h0 = gradients[1], .c0 = gradients[2]};
  }
};

OptionalGradients sequence_backward_autograd(const SequenceBackwardArguments& arguments,
                                             bool reverse,
                                             std::array<bool, 5> output_mask) {
  return autograd_kernel<SequenceBackwardOperator>(arguments, reverse, output_mask);
}

GateGradients sequence_gate_gradients_autograd(const SequenceBackwardArguments& arguments,
                                               bool reverse,
                                               std::array<bool, 2> state_mask) {
  return autograd_kernel<
      GateGradientsOperator<SequenceBackwardArguments, lltm::sequence_gate_gradients>>(
      arguments, reverse, state_mask);
}

OptionalLstmGradients lstm_backward_autograd(const LstmBackwardArguments& arguments,
                                             bool reverse,
                                             std::array<bool, 6> output_mask) {
  return autograd_kernel<LstmBackwardOperator>(arguments, reverse, output_mask);
}

GateGradients lstm_gate_gradients_autograd(const LstmBackwardArguments& arguments,
                                           bool reverse,
                                           std::array<bool, 2> state_mask) {
  return autograd_kernel<GateGradientsOperator<LstmBackwardArguments, lltm::lstm_gate_gradients>>(
      arguments, reverse, state_mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, Autograd, m) {
  m.impl("sequence_backward",
         dispatcher_kernel<sequence_backward_autograd, lltm::sequence_backward>());
  m.impl("_sequence_gate_gradients",
         dispatcher_kernel<sequence_gate_gradients_autograd, lltm::sequence_gate_gradients>());
  m.impl("lstm_backward", dispatcher_kernel<lstm_backward_autograd, lltm::lstm_backward>());
  m.impl("_lstm_gate_gradients",
         dispatcher_kernel<lstm_gate_gradients_autograd, lltm::lstm_gate_gradients>());
}

}  // namespace lltm
