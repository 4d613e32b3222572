// lltm::sequence_backward and lltm::_sequence_gate_gradients under the Autograd key.
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

namespace lltm {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr size_t kDifferentiable = 10;

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

/// The node of an operator with these arguments. It computes nothing until it runs, because most
/// graphs of gradients are never differentiated: torch.func.grad always records one.
template <typename Operator>
struct DoubleBackward {
  static constexpr const char* kName = Operator::kName;
  static constexpr bool is_traceable = false;

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (!any_defined(gradients)) {
      return variable_list(
          std::tuple_size_v<decltype(differentiable(std::declval<SequenceBackwardArguments>()))>);
    }
    const auto saved = saved_list<14>(*ctx);
    return formula::double_backward(arguments_in<SequenceBackwardArguments>(saved),
                                    ctx->saved_data[kReverse].toBool(),
                                    Operator::of_results(gradients));
  }
};

/// Calls the operator, or its formula if the call needs forward-mode AD.
template <typename Operator>
auto autograd_kernel(const SequenceBackwardArguments& arguments,
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
  static constexpr const char* kName = "LltmSequenceBackwardBackward";
  using Mask = std::array<bool, 5>;
  static constexpr auto formula = formula::sequence_backward;

  static OptionalGradients compute(const ArgumentList<14>& list, bool reverse, Mask mask) {
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

struct GateGradientsOperator {
  static constexpr const char* kName = "LltmSequenceGateGradientsBackward";
  using Mask = std::array<bool, 2>;
  static constexpr auto formula = formula::sequence_gate_gradients;

  static GateGradients compute(const ArgumentList<14>& list, bool reverse, Mask mask) {
    return call(lltm::sequence_gate_gradients, list, reverse, mask);
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
  return autograd_kernel<GateGradientsOperator>(arguments, reverse, state_mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, Autograd, m) {
  m.impl("sequence_backward",
         dispatcher_kernel<sequence_backward_autograd, lltm::sequence_backward>());
  m.impl("_sequence_gate_gradients",
         dispatcher_kernel<sequence_gate_gradients_autograd, lltm::sequence_gate_gradients>());
}

}  // namespace lltm
