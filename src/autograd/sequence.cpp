// lltm::sequence and lltm::lstm under the Autograd key.
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

struct LltmOperators {
  using Forward = op::Sequence;
  using Backward = op::SequenceBackward;
  static constexpr const char* kNode = "LltmSequenceBackward";
};

struct LstmOperators {
  using Forward = op::Lstm;
  using Backward = op::LstmBackward;
  static constexpr const char* kNode = "LltmLstmBackward";
};

template <typename Operators>
constexpr size_t kGradients = std::tuple_size_v<typename Operators::Backward::Results>;

/// The node. It saves output, cells, gates and the arguments.
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

/// Without the cells and gates that were only kept for a derivative.
void forget_steps(SequenceResults& results) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto& [output, h_n, c_n, cells, gates] = results;
  const auto none_of = [](const Tensor& steps) {
    return steps.new_empty_symint({0, steps.sym_size(1), steps.sym_size(2)});
  };
  cells = none_of(cells);
  gates = none_of(gates);
}

/// Sets the tangents of forward-mode AD of the results.
template <typename Operators>
void set_tangents(const SequenceResults& results,
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
  const auto& [output, h_n, c_n, cells, gates] = results;
  const auto tangents = formula::tangents_of_sequence(
      pack_arguments<typename Forward::Arguments>(primals), reverse, input_tangents, output, cells);
  set_tangent(output, tangents[0]);
  set_tangent(h_n, tangents[1]);
  set_tangent(c_n, tangents[2]);
  set_tangent(cells, tangents[3]);
}

template <typename Operators>
SequenceResults sequence_autograd(const typename Operators::Forward::Arguments& arguments,
                                  bool reverse,
                                  bool keep) {
  using Forward = typename Operators::Forward;
  check_defined(arguments);
  const bool dual = any_has_tangent<Forward>(arguments);
  const bool recorded = any_requires_grad<Forward>(arguments);
  auto results = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return Forward::call(arguments, reverse, keep || recorded || dual);
  }();
  const auto& [output, h_n, c_n, cells, gates] = results;
  // gates is not an output of the node: it is not differentiable, and compiled autograd does not
  // support nodes with outputs that are marked as such. cells is one even if the caller did not
  // request it, because the double backward returns a gradient through it.
  const auto node = recorded
                        ? record_node<SequenceNode<Operators>>(differentiable<Forward>(arguments),
                                                               {output, h_n, c_n, cells},
                                                               {{kReverse, reverse}})
                        : nullptr;
  if (dual) {
    set_tangents<Operators>(results, arguments, reverse);
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

}  // namespace

TORCH_LIBRARY_IMPL(lltm, Autograd, m) {
  m.impl("sequence", op::Sequence::kernel<sequence_autograd<LltmOperators>>());
  m.impl("lstm", op::Lstm::kernel<sequence_autograd<LstmOperators>>());
}

}  // namespace lltm
