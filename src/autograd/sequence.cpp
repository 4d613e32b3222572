// The operators of a sequence under the Autograd key.
#include "../dispatch/argument_list.h"
#include "../dispatch/optional_tensor.h"
#include "../formula/tangents.h"
#include "../operators/checks.h"
#include "../operators/operators.h"
#include "differentiation.h"
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

template <typename Operators>
constexpr size_t kGradients = std::tuple_size_v<typename Operators::Backward::Results>;

/// The results of a call as a list, in which those that are only written with keep, gates and maybe
/// cells, are the last.
template <typename Operators>
struct Results {
  using Cell = typename Operators::Forward::Arguments;
  using Tuple = typename Operators::Forward::Results;
  static constexpr size_t kCount = std::tuple_size_v<Tuple>;
  static constexpr size_t kFirstKept = kCount - (Cell::kCell.carries_h ? 1 : 2);

  explicit Results(const Tuple& results)
      : all(std::apply([](const auto&... result) { return std::array{result...}; }, results)) {}

  /// All but gates.
  variable_list differentiable() const { return {all.begin(), all.end() - 1}; }
  const Tensor& output() const { return all[0]; }
  /// The cell states after each step.
  const Tensor& cells() const { return all[Cell::kCell.carries_h ? 0 : kFirstKept]; }

  /// Without the steps that were only kept for a derivative.
  Tuple without_steps() const {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    std::array<Tensor, kCount> rest = all;
    for (size_t i = kFirstKept; i < kCount; ++i) {
      rest[i] = all[i].new_empty_symint({0, all[i].sym_size(1), all[i].sym_size(2)});
    }
    return std::apply([](const auto&... result) { return Tuple{result...}; }, rest);
  }

  std::array<Tensor, kCount> all;
};

/// The node. It saves output, what is only written with keep, and the arguments.
template <typename Operators>
struct SequenceNode {
  static constexpr const char* kName = Operators::kNode;
  // backward() reads only saved variables, so compiled autograd may trace it.
  static constexpr bool is_traceable = true;

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    using Backward = typename Operators::Backward;
    constexpr size_t kCount = kGradients<Operators>;
    if (!any_defined(gradients)) {
      return variable_list(kCount);
    }
    const variable_list saved = ctx->get_saved_variables();
    OptionalTensors<Backward::kTensors> list;
    const auto rest = std::transform(gradients.begin(), gradients.end(), list.begin(), if_defined);
    std::transform(saved.begin(), saved.end(), rest, if_defined);
    return variables(Backward::call(pack_arguments<typename Backward::Arguments>(list),
                                    ctx->saved_data[kReverse].toBool(),
                                    wanted_gradients<kCount>(*ctx)));
  }
};

/// Sets the tangents of forward-mode AD of the results.
template <typename Operators>
void set_tangents(const Results<Operators>& results,
                  const typename Operators::Forward::Arguments& arguments,
                  bool reverse) {
  using Forward = typename Operators::Forward;
  const auto primals = std::apply(
      [](const auto&... tensors) {
        return OptionalTensors<Forward::kTensors>{primal_of(tensors)...};
      },
      arguments.tensors());
  const variable_list inputs = differentiable<Forward>(arguments);
  std::array<Tensor, kGradients<Operators>> input_tangents;
  std::transform(inputs.begin(), inputs.end(), input_tangents.begin(), [](const Tensor& input) {
    return tangent_of(input);
  });
  const auto tangents =
      formula::tangents_of_sequence(pack_arguments<typename Forward::Arguments>(primals),
                                    reverse,
                                    input_tangents,
                                    results.output(),
                                    results.cells());
  for (size_t i = 0; i < tangents.size(); ++i) {
    set_tangent(results.all[i], tangents[i]);
  }
}

template <typename Operators>
auto sequence_autograd(const typename Operators::Forward::Arguments& arguments,
                       bool reverse,
                       bool keep) {
  using Forward = typename Operators::Forward;
  check_defined(arguments);
  const bool dual = any_has_tangent<Forward>(arguments);
  const bool recorded = any_requires_grad<Forward>(arguments);
  const auto called = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return Forward::call(arguments, reverse, keep || recorded || dual);
  }();
  const Results<Operators> results(called);
  // gates is not an output of the node: it is not differentiable, and compiled autograd does not
  // support nodes with outputs that are marked as such. cells is one even if the caller did not
  // request it, because the double backward returns a gradient through it.
  const auto node =
      recorded
          ? record_node<SequenceNode<Operators>>(
                differentiable<Forward>(arguments), results.differentiable(), {{kReverse, reverse}})
          : nullptr;
  if (dual) {
    set_tangents<Operators>(results, arguments, reverse);
  }
  if (node) {
    variable_list saved{results.output()};
    saved.insert(saved.end(), results.all.begin() + results.kFirstKept, results.all.end());
    for (const Tensor& tensor : variables(arguments.tensors())) {
      saved.push_back(tensor);
    }
    save(node, std::move(saved));
  }
  return !keep && (recorded || dual) ? results.without_steps() : called;
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, Autograd, m) {
  for_each_cell([&]<typename Cell>() {
    using Op = typename Cell::Forward;
    Op::template implement<sequence_autograd<Cell>>(m);
  });
}

}  // namespace lltm
