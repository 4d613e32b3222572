// vmap. Where the examples share the weights, their rows are folded into one batch. Where each
// example has weights of its own, the operator is called for one example after the other.
//
// The dispatcher calls these kernels before those of autocast, so the forward operators cast their
// arguments here: a vmap computes in the dtypes of a plain call.
#include "../dispatch/argument_list.h"
#include "../dispatch/optional_tensor.h"
#include "../formula/backward.h"
#include "../operators/checks.h"
#include "../operators/names.h"
#include "../operators/one_step.h"
#include "../operators/operators.h"
#include "autocast.h"
#include "vmap.h"

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace lltm {
namespace {

using at::Tensor;

/// The dimension of an argument or result that has the rows of a batch; none for what all rows
/// share, and its gradients.
template <typename Op>
std::optional<int64_t> batch_dimension(std::string_view name) {
  name = without_gradient_prefix(name);
  return is_parameter(name) ? std::nullopt
                            : std::optional(Op::Arguments::kHasSteps && has_steps(name) ? 1 : 0);
}

template <typename Op>
constexpr size_t kResults = std::tuple_size_v<typename Op::Results>;

// The results of an operator as a list, and back.

template <typename Op>
OptionalTensors<kResults<Op>> result_list(const typename Op::Results& results) {
  return std::apply([](const auto&... result) { return OptionalTensors<kResults<Op>>{result...}; },
                    results);
}

template <typename Op>
typename Op::Results results_in(const OptionalTensors<kResults<Op>>& list) {
  typename Op::Results results;
  const auto set = [](auto& result, const std::optional<Tensor>& tensor) {
    if constexpr (std::is_same_v<decltype(result), Tensor&>) {
      result = *tensor;
    } else {
      result = tensor;
    }
  };
  [&]<size_t... index>(std::index_sequence<index...>) {
    (set(std::get<index>(results), list[index]), ...);
  }(std::make_index_sequence<kResults<Op>>());
  return results;
}

/// Calls the operator once, on the rows of all examples.
template <typename Op, typename... Rest>
typename Op::Results in_one_batch(const Vmap& vmap,
                                  OptionalTensors<Op::kTensors> arguments,
                                  const c10::SymInt& batch,
                                  const Rest&... rest) {
  const auto& dimensions = Op::template by_name<batch_dimension<Op>>();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (dimensions[i] && is_given(arguments[i])) {
      arguments[i] = vmap.fold(*arguments[i], *dimensions[i]);
    }
  }
  auto results =
      result_list<Op>(Op::call(pack_arguments<typename Op::Arguments>(arguments), rest...));
  const auto& result_dimensions = Op::template by_result_name<batch_dimension<Op>>();
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i]) {
      results[i] = vmap.unfold(*results[i], *result_dimensions[i], batch);
    }
  }
  return results_in<Op>(results);
}

/// Calls the operator for every example. If there are none, calls it for one of zeros, for the
/// shapes of the results.
template <typename Op, typename... Rest>
typename Op::Results one_by_one(const Vmap& vmap,
                                const OptionalTensors<Op::kTensors>& arguments,
                                const Rest&... rest) {
  std::array<std::vector<Tensor>, Op::kTensors> examples;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (vmap.maps(arguments[i])) {
      examples[i] = vmap.examples(*arguments[i]);
    }
  }
  std::vector<Vmap::Stack> stacks(kResults<Op>, vmap.stack());
  OptionalTensors<kResults<Op>> results;
  const int64_t size = std::max<int64_t>(1, vmap.size().guard_int(__FILE__, __LINE__));
  for (int64_t example = 0; example < size; ++example) {
    auto example_arguments = arguments;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!examples[i].empty()) {
        example_arguments[i] = examples[i][example];
      }
    }
    results = result_list<Op>(
        Op::call(pack_arguments<typename Op::Arguments>(example_arguments), rest...));
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i]) {
        stacks[i].push(*results[i]);
      }
    }
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i]) {
      results[i] = stacks[i].tensor();
    }
  }
  return results_in<Op>(results);
}

/// Whether any of the parameters has values of its own in each example.
template <typename Op>
bool maps_parameters(const Vmap& vmap, const OptionalTensors<Op::kTensors>& arguments) {
  const auto& parameters = Op::template by_name<is_parameter>();
  bool maps = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    maps |= parameters[i] && vmap.maps(arguments[i]);
  }
  return maps;
}

template <typename Op, typename... Rest>
typename Op::Results batched(const typename Op::Arguments& arguments, Rest... rest) {
  const auto sizes = check<c10::SymInt>(arguments);
  const auto list = tensors_of(arguments);
  const auto vmap = Vmap::over(list);
  const c10::impl::ExcludeDispatchKeyGuard below_vmap(c10::DispatchKey::FuncTorchBatched);
  return !vmap                              ? Op::call(arguments, rest...)
         : maps_parameters<Op>(*vmap, list) ? one_by_one<Op>(*vmap, list, rest...)
                                            : in_one_batch<Op>(*vmap, list, sizes.batch, rest...);
}

template <typename Op, typename... Rest>
typename Op::Results forward_batched(const typename Op::Arguments& arguments, Rest... rest) {
  check_defined(arguments);
  const auto device = arguments.input.device().type();
  if (!at::autocast::is_autocast_available(device) || !at::autocast::is_autocast_enabled(device)) {
    return batched<Op>(arguments, rest...);
  }
  const auto list = cast_arguments<Op>(arguments, device);
  return batched<Op>(pack_arguments<typename Op::Arguments>(list), rest...);
}

/// Whether each example has gradients of its own with respect to weights or a bias that all of them
/// share. The rows of a batch cannot have these: they are sums over rows.
template <typename Op, size_t count>
bool has_gradients_of_shared_parameters(const typename Op::Arguments& arguments,
                                        const std::array<bool, count>& output_mask) {
  const auto list = tensors_of(arguments);
  const auto vmap = Vmap::over(list);
  const auto& dimensions = Op::template by_result_name<batch_dimension<Op>>();
  bool are_wanted = false;
  for (size_t i = 0; i < count; ++i) {
    are_wanted |= output_mask[i] && !dimensions[i];
  }
  return are_wanted && vmap && !maps_parameters<Op>(*vmap, list);
}

/// GateGradientsOp is the private operator with the same arguments.
template <typename Op, typename GateGradientsOp, size_t count>
typename Op::Results sequence_backward_batched(const typename Op::Arguments& arguments,
                                               bool reverse,
                                               std::array<bool, count> output_mask) {
  if (!has_gradients_of_shared_parameters<Op>(arguments, output_mask)) {
    return batched<Op>(arguments, reverse, output_mask);
  }
  constexpr size_t kStates = Op::Arguments::kCell.carries_h ? 1 : 2;
  return formula::finish_gradients(
      batched<GateGradientsOp>(arguments, reverse, state_mask<kStates>(output_mask)),
      arguments,
      reverse,
      output_mask);
}

OptionalGradients<5> backward_batched(const BackwardArguments& arguments,
                                      std::array<bool, kGradientCount> output_mask) {
  if (!has_gradients_of_shared_parameters<op::Backward>(arguments, output_mask)) {
    return batched<op::Backward>(arguments, output_mask);
  }
  check<c10::SymInt>(arguments);
  return gradients_of_one_step(
      arguments, [&](const LltmSequenceBackwardArguments& sequence_arguments) {
        return sequence_backward_batched<op::LltmSequenceBackward, op::LltmSequenceGateGradients>(
            sequence_arguments, /*reverse=*/false, output_mask);
      });
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, FuncTorchBatched, m) {
  using namespace op;
  Forward::implement<forward_batched<Forward>>(m);
  Backward::implement<backward_batched>(m);
  for_each_cell([&]<typename Cell>() {
    using Op = typename Cell::Forward;
    using OpBackward = typename Cell::Backward;
    using GateGradients = typename Cell::GateGradients;
    Op::template implement<forward_batched<Op>>(m);
    OpBackward::template implement<sequence_backward_batched<OpBackward, GateGradients>>(m);
    GateGradients::template implement<batched<GateGradients>>(m);
  });
}

// The legacy vmap, which torch.autograd.grad(is_grads_batched=True) and gradcheck still use. Its
// fallback, a loop over the examples, does not support operators with optional results. The
// operations of the composite formula have batching rules.
TORCH_LIBRARY_IMPL(lltm, Batched, m) {
  op::Backward::implement<formula::backward>(m);
  for_each_cell([&]<typename Cell>() {
    using Op = typename Cell::Backward;
    Op::template implement<formula::sequence_backward<typename Op::Arguments>>(m);
  });
}

}  // namespace lltm
