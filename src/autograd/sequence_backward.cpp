// lltm::sequence_backward and lltm::_sequence_gate_gradients under the Autograd key.
#include "../checks.h"
#include "../dispatcher_kernel.h"
#include "../formula/sequence.h"
#include "../gate_gradients.h"
#include "../optional_tensor.h"
#include "differentiation.h"
#include "double_backward.h"
#include "lltm/lltm.h"
#include "node.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <vector>

namespace lltm {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The arguments that have a gradient.
variable_list inputs_of(const SequenceBackwardArguments& a) {
  return {or_undefined(a.grad_output),
          or_undefined(a.grad_h_n),
          or_undefined(a.grad_c_n),
          or_undefined(a.grad_cells),
          a.output,
          a.cells,
          a.input,
          a.weights,
          or_undefined(a.bias),
          or_undefined(a.h0)};
}

/// The other ones.
variable_list constants_of(const SequenceBackwardArguments& a) {
  return {a.gates, or_undefined(a.c0), or_undefined(a.lengths), or_undefined(a.reset)};
}

/// The inverse of the two above: calls compute(arguments).
template <typename Compute>
auto with_arguments(const variable_list& inputs,
                    const variable_list& constants,
                    const Compute& compute) {
  std::vector<std::optional<Tensor>> optional_inputs, optional_constants;
  for (const Tensor& tensor : inputs) {
    optional_inputs.push_back(if_defined(tensor));
  }
  for (const Tensor& tensor : constants) {
    optional_constants.push_back(if_defined(tensor));
  }
  return compute(SequenceBackwardArguments{.grad_output = optional_inputs[0],
                                           .grad_h_n = optional_inputs[1],
                                           .grad_c_n = optional_inputs[2],
                                           .grad_cells = optional_inputs[3],
                                           .output = inputs[4],
                                           .cells = inputs[5],
                                           .gates = constants[0],
                                           .input = inputs[6],
                                           .weights = inputs[7],
                                           .bias = optional_inputs[8],
                                           .h0 = optional_inputs[9],
                                           .c0 = optional_constants[1],
                                           .lengths = optional_constants[2],
                                           .reset = optional_constants[3]});
}

/// The node of an operator with these arguments. Operator has the node's name, kName, and
/// differentiable(arguments, reverse, mask), its formula, whose mask has an element for each of the
/// last results that are optional.
template <typename Operator>
struct Differentiated {
  static constexpr const char* kName = Operator::kName;
  static constexpr bool is_traceable = false;

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const auto first_constant = saved.end() - 4;
    const variable_list inputs(saved.begin(), first_constant);
    if (!any_defined(gradients)) {
      return variable_list(inputs.size());
    }
    const variable_list constants(first_constant, saved.end());
    const bool reverse = ctx->saved_data[kReverse].toBool();
    typename Operator::Mask mask{};
    for (size_t i = 0; i < mask.size(); ++i) {
      mask[i] = gradients[gradients.size() - mask.size() + i].defined();
    }
    return differentiate(inputs, gradients, [&](const variable_list& values) {
      return with_arguments(values, constants, [&](const SequenceBackwardArguments& arguments) {
        return variables(Operator::differentiable(arguments, reverse, mask));
      });
    });
  }
};

/// Calls the operator, or its formula if the call needs forward-mode AD.
template <typename Operator>
auto autograd_kernel(const SequenceBackwardArguments& arguments,
                     bool reverse,
                     typename Operator::Mask mask) {
  check_defined(arguments);
  const auto& a = arguments;
  const auto any = [&](auto asked_of) {
    return asked_of(a.grad_output,
                    a.grad_h_n,
                    a.grad_c_n,
                    a.grad_cells,
                    a.output,
                    a.cells,
                    a.input,
                    a.weights,
                    a.bias,
                    a.h0);
  };
  if (any([](const auto&... tensors) { return any_has_tangent(tensors...); })) {
    return Operator::differentiable(arguments, reverse, mask);
  }
  const bool records = any([](const auto&... tensors) { return any_requires_grad(tensors...); });
  if (records) {
    check<c10::SymInt>(arguments);  // as in backward.cpp
  }
  auto results = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return Operator::call(a.grad_output,
                          a.grad_h_n,
                          a.grad_c_n,
                          a.grad_cells,
                          a.output,
                          a.cells,
                          a.gates,
                          a.input,
                          a.weights,
                          a.bias,
                          a.h0,
                          a.c0,
                          a.lengths,
                          a.reset,
                          reverse,
                          mask);
  }();
  if (records) {
    const variable_list inputs = inputs_of(arguments), constants = constants_of(arguments);
    variable_list saved = inputs;
    saved.insert(saved.end(), constants.begin(), constants.end());
    record_node<Differentiated<Operator>>(
        inputs, variables(results), std::move(saved), {{kReverse, reverse}});
  }
  return results;
}

struct SequenceBackwardOperator {
  static constexpr const char* kName = "LltmSequenceBackwardBackward";
  using Mask = std::array<bool, 5>;
  static constexpr auto differentiable = formula::sequence_backward;

  template <typename... Arguments>
  static OptionalGradients call(const Arguments&... arguments) {
    return optional_gradients(lltm::sequence_backward(arguments...));
  }
};

struct GateGradientsOperator {
  static constexpr const char* kName = "LltmSequenceGateGradientsBackward";
  using Mask = std::array<bool, 2>;
  static constexpr auto differentiable = formula::sequence_gate_gradients;
  static constexpr auto call = lltm::sequence_gate_gradients;
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
