// The backward operators of a sequence and their private siblings under the Autograd key.
#include "../dispatch/argument_list.h"
#include "../formula/backward.h"
#include "../formula/double_backward.h"
#include "../operators/checks.h"
#include "../operators/operators.h"
#include "differentiation.h"
#include "node.h"
#include "recorded_call.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <cstddef>
#include <string_view>
#include <tuple>
#include <utility>

namespace lltm {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Place = Tensor formula::GradientsOfGradients::*;

/// Where the gradient of a result goes.
Place place_of(std::string_view result) {
  using Given = formula::GradientsOfGradients;
  static constexpr std::pair<std::string_view, Place> kPlaces[] = {
      {"d_gates", &Given::gates},
      {"d_input", &Given::input},
      {"d_weights", &Given::weights},
      {"d_weight_ih", &Given::weight_ih},
      {"d_weight_hh", &Given::weight_hh},
      {"d_bias", &Given::bias},
      {"d_bias_ih", &Given::bias},
      {"d_bias_hh", &Given::bias_hh},
      {"d_h0", &Given::h0},
      {"d_c0", &Given::c0},
  };
  for (const auto& [name, place] : kPlaces) {
    if (name == result) {
      return place;
    }
  }
  TORCH_INTERNAL_ASSERT(false, "no gradient of ", result);
}

/// The node. It computes nothing until it runs, because most graphs of gradients are never
/// differentiated: torch.func.grad always records one.
template <typename Op, const char* const& name>
struct DoubleBackward {
  static constexpr const char* kName = name;
  static constexpr bool is_traceable = false;

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (!any_defined(gradients)) {
      return variable_list(number_differentiable<Op>());
    }
    const auto& places = Op::template by_result_name<place_of>();
    formula::GradientsOfGradients given;
    for (size_t i = 0; i < places.size(); ++i) {
      given.*places[i] = gradients[i];
    }
    const auto saved = saved_list<Op::kTensors>(*ctx);
    return formula::double_backward(
        pack_arguments<typename Op::Arguments>(saved), ctx->saved_data[kReverse].toBool(), given);
  }
};

/// Calls the operator, or its formula if the call needs forward-mode AD.
template <typename Op, const char* const& node, typename Mask>
typename Op::Results backward_autograd(const typename Op::Arguments& arguments,
                                       bool reverse,
                                       Mask mask) {
  check_defined(arguments);
  if (any_has_tangent<Op>(arguments)) {
    if constexpr (std::tuple_size_v<typename Op::Results> <= std::tuple_size_v<GateGradients>) {
      return formula::gate_gradients(arguments, reverse, mask);
    } else {
      return formula::sequence_backward(arguments, reverse, mask);
    }
  }
  return recorded_call<Op, DoubleBackward<Op, node>>(
      arguments, {{kReverse, reverse}}, reverse, mask);
}

constexpr const char* kGateGradientsNode = "LltmGateGradientsBackward";

}  // namespace

TORCH_LIBRARY_IMPL(lltm, Autograd, m) {
  for_each_cell([&]<typename Cell>() {
    using Backward = typename Cell::Backward;
    using GateGradients = typename Cell::GateGradients;
    Backward::template implement<backward_autograd<Backward, Cell::kBackwardNode>>(m);
    GateGradients::template implement<backward_autograd<GateGradients, kGateGradientsNode>>(m);
  });
}

}  // namespace lltm
