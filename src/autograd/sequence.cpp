// lltm::sequence and lltm::lstm under the Autograd key.
#include "../dispatch/argument_list.h"
#include "../dispatch/dispatcher_kernel.h"
#include "../dispatch/optional_tensor.h"
#include "../formula/tangents.h"
#include "../operators/checks.h"
#include "differentiation.h"
#include "lltm/lltm.h"
#include "node.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

namespace lltm {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Sequence {
  using Arguments = SequenceArguments;
  static constexpr const char* kName = "LltmSequenceBackward";
  static constexpr auto forward = lltm::sequence;
  static constexpr auto backward = lltm::sequence_backward;
  static auto differentiable(const Arguments& a) {
    return std::tie(a.input, a.weights, a.bias, a.h0, a.c0);
  }
};

struct Lstm {
  using Arguments = LstmArguments;
  static constexpr const char* kName = "LltmLstmBackward";
  static constexpr auto forward = lltm::lstm;
  static constexpr auto backward = lltm::lstm_backward;
  static auto differentiable(const Arguments& a) {
    return std::tie(a.input, a.weight_ih, a.weight_hh, a.bias, a.h0, a.c0);
  }
};

template <typename Operator>
constexpr size_t kArguments =
    std::tuple_size_v<decltype(std::declval<typename Operator::Arguments>().tensors())>;
template <typename Operator>
constexpr size_t kDifferentiable = std::tuple_size_v<decltype(Operator::differentiable(
    std::declval<typename Operator::Arguments>()))>;

/// The node. It saves output, cells, gates and the arguments.
template <typename Operator>
struct SequenceBackward {
  static constexpr const char* kName = Operator::kName;
  // backward() reads only saved variables, so compiled autograd may trace it.
  static constexpr bool is_traceable = true;

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    constexpr size_t kGradients = kDifferentiable<Operator>, kSaved = 3 + kArguments<Operator>;
    if (!any_defined(gradients)) {
      return variable_list(kGradients);
    }
    const auto saved = saved_list<kSaved>(*ctx);
    ArgumentList<4 + kSaved> list;
    const auto rest = std::transform(gradients.begin(), gradients.end(), list.begin(), if_defined);
    std::copy(saved.begin(), saved.end(), rest);
    return variables(call(Operator::backward,
                          list,
                          ctx->saved_data[kReverse].toBool(),
                          wanted_gradients<kGradients>(*ctx)));
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
template <typename Operator>
void set_tangents(const Results& results,
                  const typename Operator::Arguments& arguments,
                  bool reverse) {
  const auto primals = std::apply(
      [](const auto&... tensors) {
        return ArgumentList<sizeof...(tensors)>{primal_of(tensors)...};
      },
      arguments.tensors());
  const auto tangents_of_arguments =
      std::apply([](const auto&... tensors) { return std::array{tangent_of(tensors)...}; },
                 Operator::differentiable(arguments));
  const auto& [output, h_n, c_n, cells, gates] = results;
  const auto tangents =
      formula::tangents_of_sequence(arguments_in<typename Operator::Arguments>(primals),
                                    reverse,
                                    tangents_of_arguments,
                                    output,
                                    cells);
  set_tangent(output, tangents[0]);
  set_tangent(h_n, tangents[1]);
  set_tangent(c_n, tangents[2]);
  set_tangent(cells, tangents[3]);
}

template <typename Operator>
Results autograd_kernel(const typename Operator::Arguments& arguments, bool reverse, bool keep) {
  check_defined(arguments);
  const auto inputs = Operator::differentiable(arguments);
  const bool dual =
      std::apply([](const auto&... tensors) { return any_has_tangent(tensors...); }, inputs);
  const bool recorded =
      std::apply([](const auto&... tensors) { return any_requires_grad(tensors...); }, inputs);
  auto results = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return std::apply(
        [&](const auto&... tensors) {
          return Operator::forward(tensors..., reverse, keep || recorded || dual);
        },
        arguments.tensors());
  }();
  const auto& [output, h_n, c_n, cells, gates] = results;
  // gates is not an output of the node: it is not differentiable, and compiled autograd does not
  // support nodes with outputs that are marked as such. cells is one even if the caller did not
  // request it, because the double backward returns a gradient through it.
  const auto node = recorded
                        ? record_node<SequenceBackward<Operator>>(
                              variables(inputs), {output, h_n, c_n, cells}, {{kReverse, reverse}})
                        : nullptr;
  if (dual) {
    set_tangents<Operator>(results, arguments, reverse);
  }
  if (node) {
    variable_list saved{output, cells, gates};
    for (const Tensor& tensor : variables(arguments.tensors())) {
      saved.push_back(tensor);
    }
    save(node, std::move(saved));
  }
  if (!keep && (recorded || dual)) {
    forget_steps(results);
  }
  return results;
}

Results sequence_autograd(const SequenceArguments& arguments, bool reverse, bool keep) {
  return autograd_kernel<Sequence>(arguments, reverse, keep);
}

Results lstm_autograd(const LstmArguments& arguments, bool reverse, bool keep) {
  return autograd_kernel<Lstm>(arguments, reverse, keep);
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, Autograd, m) {
  m.impl("sequence", dispatcher_kernel<sequence_autograd, lltm::sequence>());
  m.impl("lstm", dispatcher_kernel<lstm_autograd, lltm::lstm>());
}

}  // namespace lltm
