// lltm::sequence under the Autograd key.
#include "../dispatch/argument_list.h"
#include "../dispatch/dispatcher_kernel.h"
#include "../dispatch/optional_tensor.h"
#include "../formula/tangents.h"
#include "../operators/checks.h"
#include "../operators/gradient_index.h"
#include "differentiation.h"
#include "lltm/lltm.h"
#include "node.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>

namespace lltm {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SequenceBackward {
  static constexpr const char* kName = "LltmSequenceBackward";
  // backward() reads only saved variables, so compiled autograd may trace it.
  static constexpr bool is_traceable = true;

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    if (!any_defined(gradients)) {
      return variable_list(kGradientCount);
    }
    const auto saved = saved_list<10>(*ctx);
    ArgumentList<14> list;
    const auto rest = std::transform(gradients.begin(), gradients.end(), list.begin(), if_defined);
    std::copy(saved.begin(), saved.end(), rest);
    auto [d_input, d_weights, d_bias, d_h0, d_c0] = call(lltm::sequence_backward,
                                                         list,
                                                         ctx->saved_data[kReverse].toBool(),
                                                         wanted_gradients<kGradientCount>(*ctx));
    return {std::move(d_input),
            std::move(d_weights),
            std::move(d_bias),
            std::move(d_h0),
            std::move(d_c0)};
  }
};

using Results = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

/// Without the cells and gates that were only kept for a derivative.
void forget_steps(Results& results) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto& [output, h_n, c_n, cells, gates] = results;
  const auto none_of = [](const Tensor& steps) {
    return steps.new_empty_symint({0, steps.sym_size(1), steps.sym_size(2)});
  };
  cells = none_of(cells);
  gates = none_of(gates);
}

/// Sets the tangents of forward-mode AD of the results.
void set_tangents(const Results& results, const SequenceArguments& arguments, bool reverse) {
  const auto primals = std::apply(
      [](const auto&... tensors) {
        return ArgumentList<sizeof...(tensors)>{primal_of(tensors)...};
      },
      arguments.tensors());
  const auto& [output, h_n, c_n, cells, gates] = results;
  const auto tangents = formula::tangents_of_sequence(arguments_in<SequenceArguments>(primals),
                                                      reverse,
                                                      {tangent_of(arguments.input),
                                                       tangent_of(arguments.weights),
                                                       tangent_of(arguments.bias),
                                                       tangent_of(arguments.h0),
                                                       tangent_of(arguments.c0)},
                                                      output,
                                                      cells);
  set_tangent(output, tangents[0]);
  set_tangent(h_n, tangents[1]);
  set_tangent(c_n, tangents[2]);
  set_tangent(cells, tangents[3]);
}

Results sequence_autograd(const SequenceArguments& arguments, bool reverse, bool keep) {
  check_defined(arguments);
  const auto& [input, weights, bias, h0, c0, lengths, reset] = arguments;
  const bool dual = any_has_tangent(input, weights, bias, h0, c0);
  const bool recorded = any_requires_grad(input, weights, bias, h0, c0);
  auto results = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return lltm::sequence(
        input, weights, bias, h0, c0, lengths, reset, reverse, keep || recorded || dual);
  }();
  const auto& [output, h_n, c_n, cells, gates] = results;
  // gates is not an output of the node: it is not differentiable, and compiled autograd does not
  // support nodes with outputs that are marked as such. cells is one even if the caller did not
  // request it, because the double backward returns a gradient through it.
  const auto node =
      recorded ? record_node<SequenceBackward>(
                     {input, weights, or_undefined(bias), or_undefined(h0), or_undefined(c0)},
                     {output, h_n, c_n, cells},
                     {{kReverse, reverse}})
               : nullptr;
  if (dual) {
    set_tangents(results, arguments, reverse);
  }
  if (node) {
    save(node,
         {output,
          cells,
          gates,
          input,
          weights,
          or_undefined(bias),
          or_undefined(h0),
          or_undefined(c0),
          or_undefined(lengths),
          or_undefined(reset)});
  }
  if (!keep && (recorded || dual)) {
    forget_steps(results);
  }
  return results;
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, Autograd, m) {
  m.impl("sequence", dispatcher_kernel<sequence_autograd, lltm::sequence>());
}

}  // namespace lltm
