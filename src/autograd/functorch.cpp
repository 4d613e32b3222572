// vmap. Where the examples share the weights, their rows are folded into one batch. Where each
// example has weights of its own, the operator is called for one example after the other.
//
// The dispatcher calls these kernels before those of autocast, so the forward operators cast their
// arguments here: a vmap computes in the dtypes of a plain call.
#include "../dispatch/argument_list.h"
#include "../dispatch/dispatcher_kernel.h"
#include "../dispatch/optional_tensor.h"
#include "../formula/backward.h"
#include "../operators/checks.h"
#include "../operators/gate_gradients.h"
#include "../operators/one_step.h"
#include "autocast.h"
#include "lltm/lltm.h"
#include "vmap.h"

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>
#include <vector>

namespace lltm {
namespace {

using at::Tensor;

// The dimension that has the rows of a batch, for each argument and result of an operator.

constexpr int kNone = -1;  // weights and bias, which all rows share, and their gradients

template <size_t arguments, size_t results>
struct RowDimensions {
  std::array<int, arguments> of_arguments;
  std::array<int, results> of_results;
};

constexpr RowDimensions<5, 3> kForwardRows{{0, kNone, kNone, 0, 0}, {0, 0, 0}};
constexpr RowDimensions<8, 5> kBackwardRows{{0, 0, 0, 0, 0, kNone, kNone, 0},
                                            {0, kNone, kNone, 0, 0}};
constexpr RowDimensions<7, 5> kSequenceRows{{1, kNone, kNone, 0, 0, 0, 1}, {1, 0, 0, 1, 1}};
constexpr std::array kOfSequenceBackward{1, 0, 0, 1, 1, 1, 1, 1, kNone, kNone, 0, 0, 0, 1};
constexpr RowDimensions<14, 5> kSequenceBackwardRows{kOfSequenceBackward, {1, kNone, kNone, 0, 0}};
constexpr RowDimensions<14, 3> kGateGradientsRows{kOfSequenceBackward, {1, 0, 0}};
constexpr RowDimensions<8, 5> kLstmRows{{1, kNone, kNone, kNone, 0, 0, 0, 1}, {1, 0, 0, 1, 1}};
constexpr std::array kOfLstmBackward{1, 0, 0, 1, 1, 1, 1, 1, kNone, kNone, kNone, 0, 0, 0, 1};
constexpr RowDimensions<15, 6> kLstmBackwardRows{kOfLstmBackward, {1, kNone, kNone, kNone, 0, 0}};
constexpr RowDimensions<15, 3> kLstmGateGradientsRows{kOfLstmBackward, {1, 0, 0}};

bool is_given(const Tensor& tensor) {
  return tensor.defined();
}
using lltm::is_given;

/// Applies wrap(result, index) to every result that is not absent.
template <typename Results, typename Wrap>
Results map_results(Results results, const Wrap& wrap) {
  [&]<size_t... index>(std::index_sequence<index...>) {
    const auto replace = [&](auto& result, size_t i) {
      if (is_given(result)) {
        result = wrap(i);
      }
    };
    (replace(std::get<index>(results), index), ...);
  }(std::make_index_sequence<std::tuple_size_v<Results>>());
  return results;
}

const Tensor* tensor_of(const Tensor& result) {
  return &result;
}
const Tensor* tensor_of(const std::optional<Tensor>& result) {
  return &*result;
}

/// A result, or null if it is absent.
template <typename Results>
const Tensor* result_at(const Results& results, size_t index) {
  return std::apply(
      [index](const auto&... result) {
        return std::array{(is_given(result) ? tensor_of(result) : nullptr)...}[index];
      },
      results);
}

/// Calls run(arguments) once, on the rows of all examples.
template <size_t count, size_t result_count, typename Run>
auto in_one_batch(const Vmap& vmap,
                  ArgumentList<count> arguments,
                  const RowDimensions<count, result_count>& rows,
                  const c10::SymInt& batch,
                  const Run& run) {
  for (size_t i = 0; i < count; ++i) {
    if (rows.of_arguments[i] != kNone && is_given(arguments[i])) {
      arguments[i] = vmap.fold(*arguments[i], rows.of_arguments[i]);
    }
  }
  const auto results = run(arguments);
  return map_results(results, [&](size_t i) {
    return vmap.unfold(*result_at(results, i), rows.of_results[i], batch);
  });
}

/// Calls run(arguments) for every example. If there are none, calls it for one of zeros, for the
/// shapes of the results.
template <size_t count, typename Run>
auto one_by_one(const Vmap& vmap, const ArgumentList<count>& arguments, const Run& run) {
  std::array<std::vector<Tensor>, count> examples;
  for (size_t i = 0; i < count; ++i) {
    if (vmap.maps(arguments[i])) {
      examples[i] = vmap.examples(*arguments[i]);
    }
  }
  using Results = decltype(run(arguments));
  Results last;
  std::vector<Vmap::Stack> stacks(std::tuple_size_v<Results>, vmap.stack());
  const int64_t size = std::max<int64_t>(1, vmap.size().guard_int(__FILE__, __LINE__));
  for (int64_t example = 0; example < size; ++example) {
    ArgumentList<count> of_example = arguments;
    for (size_t i = 0; i < count; ++i) {
      if (!examples[i].empty()) {
        of_example[i] = examples[i][example];
      }
    }
    const Results results = run(of_example);
    for (size_t i = 0; i < stacks.size(); ++i) {
      if (const Tensor* result = result_at(results, i)) {
        stacks[i].push(*result);
      }
    }
    if (example + 1 == size) {
      last = results;
    }
  }
  return map_results(last, [&](size_t i) { return stacks[i].tensor(); });
}

/// Calls run(arguments) below vmap.
template <size_t count, size_t result_count, typename Run>
auto map(const ArgumentList<count>& arguments,
         const RowDimensions<count, result_count>& rows,
         const c10::SymInt& batch,
         const Run& run) {
  const auto vmap = Vmap::over(arguments);
  bool shared = true;
  for (size_t i = 0; vmap && i < count; ++i) {
    shared &= rows.of_arguments[i] != kNone || !vmap->maps(arguments[i]);
  }
  const c10::impl::ExcludeDispatchKeyGuard below_vmap(c10::DispatchKey::FuncTorchBatched);
  return !vmap    ? run(arguments)
         : shared ? in_one_batch(*vmap, arguments, rows, batch, run)
                  : one_by_one(*vmap, arguments, run);
}

bool is_autocast_on(c10::DeviceType device) {
  return at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device);
}

std::tuple<Tensor, Tensor, Tensor> forward_in_its_dtype(const ForwardArguments& arguments) {
  const auto sizes = check<c10::SymInt>(arguments);
  return map(list_of(arguments), kForwardRows, sizes.batch, [](const auto& unwrapped) {
    return call(forward, unwrapped);
  });
}

std::tuple<Tensor, Tensor, Tensor> forward_batched(const ForwardArguments& arguments) {
  check_defined(arguments);
  const auto& [input, weights, bias, old_h, old_cell] = arguments;
  const auto device = input.device().type();
  if (!is_autocast_on(device)) {
    return forward_in_its_dtype(arguments);
  }
  const auto cast = autocast_on(device);
  return forward_in_its_dtype(
      {cast(input), cast(weights), cast(bias), cast(old_h), cast(old_cell)});
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> sequence_in_its_dtype(
    const SequenceArguments& arguments, bool reverse, bool keep) {
  const auto sizes = check<c10::SymInt>(arguments);
  return map(list_of(arguments), kSequenceRows, sizes.batch, [&](const auto& unwrapped) {
    return call(sequence, unwrapped, reverse, keep);
  });
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> sequence_batched(
    const SequenceArguments& arguments, bool reverse, bool keep) {
  check_defined(arguments);
  const auto& [input, weights, bias, h0, c0, lengths, reset] = arguments;
  const auto device = input.device().type();
  if (!is_autocast_on(device)) {
    return sequence_in_its_dtype(arguments, reverse, keep);
  }
  const auto cast = autocast_on(device);
  return sequence_in_its_dtype(
      {cast(input), cast(weights), cast(bias), cast(h0), c0, lengths, reset}, reverse, keep);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> lstm_in_its_dtype(const LstmArguments& arguments,
                                                                     bool reverse,
                                                                     bool keep) {
  const auto sizes = check<c10::SymInt>(arguments);
  return map(list_of(arguments), kLstmRows, sizes.batch, [&](const auto& unwrapped) {
    return call(lstm, unwrapped, reverse, keep);
  });
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> lstm_batched(const LstmArguments& arguments,
                                                                bool reverse,
                                                                bool keep) {
  check_defined(arguments);
  const auto& [input, weight_ih, weight_hh, bias, h0, c0, lengths, reset] = arguments;
  const auto device = input.device().type();
  if (!is_autocast_on(device)) {
    return lstm_in_its_dtype(arguments, reverse, keep);
  }
  const auto cast = autocast_on(device);
  return lstm_in_its_dtype(
      {cast(input), cast(weight_ih), cast(weight_hh), cast(bias), cast(h0), c0, lengths, reset},
      reverse,
      keep);
}

GateGradients sequence_gate_gradients_batched(const SequenceBackwardArguments& arguments,
                                              bool reverse,
                                              std::array<bool, 2> state_mask) {
  const auto sizes = check<c10::SymInt>(arguments);
  return map(list_of(arguments), kGateGradientsRows, sizes.batch, [&](const auto& unwrapped) {
    return call(sequence_gate_gradients, unwrapped, reverse, state_mask);
  });
}

GateGradients lstm_gate_gradients_batched(const LstmBackwardArguments& arguments,
                                          bool reverse,
                                          std::array<bool, 2> state_mask) {
  const auto sizes = check<c10::SymInt>(arguments);
  return map(list_of(arguments), kLstmGateGradientsRows, sizes.batch, [&](const auto& unwrapped) {
    return call(lstm_gate_gradients, unwrapped, reverse, state_mask);
  });
}

/// Whether each example has gradients of its own with respect to weights or a bias that all of them
/// share. The rows of a batch cannot have these: they are sums over rows.
template <typename... Parameters>
bool has_gradients_of_shared_parameters(c10::ArrayRef<std::optional<Tensor>> arguments,
                                        bool are_wanted,
                                        const Parameters&... parameters) {
  const auto vmap = Vmap::over(arguments);
  return are_wanted && vmap && !(vmap->maps(parameters) || ...);
}

OptionalGradients sequence_backward_batched(const SequenceBackwardArguments& arguments,
                                            bool reverse,
                                            std::array<bool, 5> output_mask) {
  const auto sizes = check<c10::SymInt>(arguments);
  const auto tensors = list_of(arguments);
  const bool of_parameters = output_mask[kWeights] || output_mask[kBias];
  if (has_gradients_of_shared_parameters(
          tensors, of_parameters, arguments.weights, arguments.bias)) {
    return formula::finish_gradients(
        sequence_gate_gradients_batched(arguments, reverse, {output_mask[kH0], output_mask[kC0]}),
        arguments,
        reverse,
        output_mask);
  }
  return map(tensors, kSequenceBackwardRows, sizes.batch, [&](const auto& unwrapped) {
    return optional_gradients(call(sequence_backward, unwrapped, reverse, output_mask));
  });
}

OptionalLstmGradients lstm_backward_batched(const LstmBackwardArguments& arguments,
                                            bool reverse,
                                            std::array<bool, 6> output_mask) {
  using Index = LstmGradient::Index;
  const auto sizes = check<c10::SymInt>(arguments);
  const auto tensors = list_of(arguments);
  const bool of_parameters =
      output_mask[Index::kWeightIh] || output_mask[Index::kWeightHh] || output_mask[Index::kBias];
  if (has_gradients_of_shared_parameters(
          tensors, of_parameters, arguments.weight_ih, arguments.weight_hh, arguments.bias)) {
    const std::array state_mask{output_mask[Index::kH0], output_mask[Index::kC0]};
    return formula::finish_gradients(lstm_gate_gradients_batched(arguments, reverse, state_mask),
                                     arguments,
                                     reverse,
                                     output_mask);
  }
  return map(tensors, kLstmBackwardRows, sizes.batch, [&](const auto& unwrapped) {
    return optional_gradients(call(lstm_backward, unwrapped, reverse, output_mask));
  });
}

OptionalGradients backward_batched(const BackwardArguments& arguments,
                                   std::array<bool, 5> output_mask) {
  const auto sizes = check<c10::SymInt>(arguments);
  const auto tensors = list_of(arguments);
  const bool of_parameters = output_mask[kWeights] || output_mask[kBias];
  if (has_gradients_of_shared_parameters(
          tensors, of_parameters, arguments.weights, arguments.bias)) {
    return gradients_of_one_step(arguments, [&](const SequenceBackwardArguments& of_sequence) {
      return sequence_backward_batched(of_sequence, /*reverse=*/false, output_mask);
    });
  }
  return map(tensors, kBackwardRows, sizes.batch, [&](const auto& unwrapped) {
    return optional_gradients(call(backward, unwrapped, output_mask));
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, FuncTorchBatched, m) {
  m.impl("forward", dispatcher_kernel<forward_batched, lltm::forward>());
  m.impl("backward", dispatcher_kernel<backward_batched, lltm::backward>());
  m.impl("sequence", dispatcher_kernel<sequence_batched, lltm::sequence>());
  m.impl("sequence_backward",
         dispatcher_kernel<sequence_backward_batched, lltm::sequence_backward>());
  m.impl("_sequence_gate_gradients",
         dispatcher_kernel<sequence_gate_gradients_batched, lltm::sequence_gate_gradients>());
  m.impl("lstm", dispatcher_kernel<lstm_batched, lltm::lstm>());
  m.impl("lstm_backward", dispatcher_kernel<lstm_backward_batched, lltm::lstm_backward>());
  m.impl("_lstm_gate_gradients",
         dispatcher_kernel<lstm_gate_gradients_batched, lltm::lstm_gate_gradients>());
}

// The legacy vmap, which torch.autograd.grad(is_grads_batched=True) and gradcheck still use. Its
// fallback, a loop over the examples, does not support operators with optional results. The
// operations of the composite formula have batching rules.
TORCH_LIBRARY_IMPL(lltm, Batched, m) {
  m.impl("backward", dispatcher_kernel<formula::backward, lltm::backward>());
  m.impl("sequence_backward",
         dispatcher_kernel<formula::sequence_backward, lltm::sequence_backward>());
  m.impl("lstm_backward", dispatcher_kernel<formula::lstm_backward, lltm::lstm_backward>());
}

}  // namespace lltm
