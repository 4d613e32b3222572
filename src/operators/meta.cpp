// The Meta kernels: the shapes and dtypes of the results, with symbolic sizes.
#include "../dispatch/dispatcher_kernel.h"
#include "checks.h"
#include "gate_gradients.h"
#include "gradient_index.h"
#include "outputs.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/SymInt.h>
#include <torch/library.h>

namespace lltm {
namespace {

using at::Tensor;

Tensor empty(at::SymIntArrayRef sizes,
             const Tensor& like,
             std::optional<at::ScalarType> dtype = std::nullopt) {
  return at::empty_symint(sizes, like.options().dtype(dtype.value_or(like.scalar_type())));
}

/// Every gradient has the shape of its argument.
OptionalGradients empty_if_wanted(const std::array<bool, 5>& output_mask,
                                  const Tensor& input,
                                  const Tensor& weights,
                                  const std::array<c10::SymInt, 2>& state,
                                  at::ScalarType cell_dtype) {
  const auto empty_if = [&](Gradient gradient, at::SymIntArrayRef shape, at::ScalarType dtype) {
    return if_wanted(output_mask[gradient], [&] { return empty(shape, input, dtype); });
  };
  const auto dtype = input.scalar_type();
  return {empty_if(kInput, input.sym_sizes(), dtype),
          empty_if(kWeights, weights.sym_sizes(), dtype),
          empty_if(kBias, weights.sym_sizes().slice(0, 1), dtype),
          empty_if(kOldH, state, dtype),
          empty_if(kOldCell, state, cell_dtype)};
}

std::tuple<Tensor, Tensor, Tensor> forward_meta(const ForwardArguments& arguments) {
  const auto [batch, input_features, state_size, gates] = check<c10::SymInt>(arguments);
  return {empty({batch, state_size}, arguments.input),
          empty({batch, state_size}, arguments.input),
          empty({batch, gates}, arguments.input)};
}

OptionalGradients backward_meta(const BackwardArguments& arguments,
                                std::array<bool, 5> output_mask) {
  const auto sizes = check<c10::SymInt>(arguments);
  return empty_if_wanted(output_mask,
                         arguments.input,
                         arguments.weights,
                         {sizes.batch, sizes.state_size},
                         arguments.input.scalar_type());
}

template <typename Arguments>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> sequence_meta(const Arguments& arguments,
                                                                 bool /*reverse*/,
                                                                 bool keep) {
  const auto sizes = check<c10::SymInt>(arguments);
  return empty_outputs(arguments,
                       sizes,
                       keep,
                       [&](at::SymIntArrayRef shape, at::ScalarType dtype) {
                         return empty(shape, arguments.input, dtype);
                       })
      .results();
}

OptionalGradients sequence_backward_meta(const SequenceBackwardArguments& arguments,
                                         bool /*reverse*/,
                                         std::array<bool, 5> output_mask) {
  const auto sizes = check<c10::SymInt>(arguments);
  return empty_if_wanted(output_mask,
                         arguments.input,
                         arguments.weights,
                         {sizes.batch, sizes.state_size},
                         final_cell_dtype(arguments.sequence()));
}

OptionalLstmGradients lstm_backward_meta(const LstmBackwardArguments& arguments,
                                         bool /*reverse*/,
                                         std::array<bool, 6> output_mask) {
  const auto sizes = check<c10::SymInt>(arguments);
  const Tensor& input = arguments.input;
  const auto empty_if =
      [&](LstmGradient::Index gradient, at::SymIntArrayRef shape, at::ScalarType dtype) {
        return if_wanted(output_mask[gradient], [&] { return empty(shape, input, dtype); });
      };
  const auto dtype = input.scalar_type();
  const std::array state{sizes.batch, sizes.state_size};
  return {empty_if(LstmGradient::kInput, input.sym_sizes(), dtype),
          empty_if(LstmGradient::kWeightIh, arguments.weight_ih.sym_sizes(), dtype),
          empty_if(LstmGradient::kWeightHh, arguments.weight_hh.sym_sizes(), dtype),
          empty_if(LstmGradient::kBias, {sizes.gates}, dtype),
          empty_if(LstmGradient::kH0, state, dtype),
          empty_if(LstmGradient::kC0, state, final_cell_dtype(arguments.sequence()))};
}

template <typename Arguments>
GateGradients gate_gradients_meta(const Arguments& arguments,
                                  bool /*reverse*/,
                                  std::array<bool, 2> state_mask) {
  const auto sizes = check<c10::SymInt>(arguments);
  const Tensor& input = arguments.input;
  const auto state_if = [&](bool wanted, at::ScalarType dtype) {
    return if_wanted(wanted, [&] { return empty({sizes.batch, sizes.state_size}, input, dtype); });
  };
  return {empty({sizes.steps, sizes.batch, sizes.gates}, input),
          state_if(state_mask[0], input.scalar_type()),
          state_if(state_mask[1], final_cell_dtype(arguments.sequence()))};
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, Meta, m) {
  m.impl("forward", dispatcher_kernel<forward_meta, lltm::forward>());
  m.impl("backward", dispatcher_kernel<backward_meta, lltm::backward>());
  m.impl("sequence", dispatcher_kernel<sequence_meta<SequenceArguments>, lltm::sequence>());
  m.impl("sequence_backward", dispatcher_kernel<sequence_backward_meta, lltm::sequence_backward>());
  m.impl(
      "_sequence_gate_gradients",
      dispatcher_kernel<gate_gradients_meta<SequenceBackwardArguments>, sequence_gate_gradients>());
  m.impl("lstm", dispatcher_kernel<sequence_meta<LstmArguments>, lltm::lstm>());
  m.impl("lstm_backward", dispatcher_kernel<lstm_backward_meta, lltm::lstm_backward>());
  m.impl("_lstm_gate_gradients",
         dispatcher_kernel<gate_gradients_meta<LstmBackwardArguments>, lstm_gate_gradients>());
}

}  // namespace lltm
