// lltm::sequence_backward on CUDA.
//
// From the last step that was run to the first: a pointwise kernel makes d_gates of a step, and a
// product the gradient of the h before it. Then one product each for d_weights' two blocks of
// columns and for d_input, over all steps. The gradients of the state are carried in the
// accumulation type; d_gates are rounded, as the cell's are.
#include "../checks.h"
#include "../gradients.h"
#include "kernels/sequence_gradients.h"
#include "runtime/device.h"
#include "runtime/launch_check.h"
#include "sequence.h"

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

namespace lltm::cuda {
namespace {

using at::Tensor;

struct Gradients {
  Tensor input, weights, bias, h0, c0;

  bool any_wanted() const {
    return input.defined() || weights.defined() || bias.defined() || h0.defined() || c0.defined();
  }
};

/// The input of the steps that were run, zero beyond the length: a NaN there must not meet the zero
/// of its d_gates in a product.
Tensor input_of_steps(const Tensor& input, const std::optional<Tensor>& lengths) {
  if (!is_given(lengths)) {
    return input;
  }
  const Tensor runs = at::arange(input.size(0), lengths->options()).unsqueeze(1).lt(*lengths);
  return at::where(runs.unsqueeze(2), input, 0);
}

template <typename scalar_t>
void run(const Gradients& gradients,
         const SequenceBackwardArguments& arguments,
         const SequenceSizes<int64_t>& sizes,
         const Device& device,
         bool reverse) {
  using acc_t = accumulate_t<scalar_t>;
  const auto& [steps, batch, input_features, state_size] = sizes;
  const auto accumulated = c10::CppTypeToScalarType<acc_t>::value;
  const auto dtype = arguments.input.scalar_type();
  const cudaStream_t stream = device.stream();
  const auto begin = [&](const std::optional<Tensor>& incoming) {
    Tensor state = device.empty({sizes.batch, sizes.state_size}, accumulated);
    return is_given(incoming) ? state.copy_(*incoming) : state.zero_();
  };
  const Tensor d_h = begin(arguments.grad_h_n);
  const Tensor d_cell = begin(arguments.grad_c_n);
  const Tensor from_h = device.empty({batch, state_size}, accumulated);
  const Tensor d_gates = device.empty({steps, batch, 3 * state_size}, dtype);
  const Tensor gates = arguments.gates.contiguous();
  const Tensor cells = arguments.cells.contiguous();
  const Tensor weights_h = h_columns(arguments.weights);
  SequenceGradientsParams<scalar_t> params{
      .rows = batch,
      .state_size = state_size,
      .t = kNoTime,
      .last_t = kNoTime,
      .rows_of_sequence = rows_of_sequence(arguments.sequence(), /*first_row=*/0),
      .grad_output = steps_of<scalar_t>(arguments.grad_output),
      .grad_cells = steps_of<scalar_t>(arguments.grad_cells),
      .from_h = from_h.const_data_ptr<acc_t>(),
      .d_h = d_h.mutable_data_ptr<acc_t>(),
      .d_cell = d_cell.mutable_data_ptr<acc_t>(),
      .gates = nullptr,
      .cells = nullptr,
      .d_gates = nullptr,
  };
  for (int64_t k = steps - 1; k >= 0; --k) {
    const int64_t t = reverse ? steps - 1 - k : k;
    params.t = t;
    params.gates = gates.const_data_ptr<scalar_t>() + t * batch * 3 * state_size;
    params.cells = cells.const_data_ptr<scalar_t>() + t * batch * state_size;
    params.d_gates = d_gates.mutable_data_ptr<scalar_t>() + t * batch * 3 * state_size;
    check_launch(launch_sequence_gradients(params, stream));
    params.last_t = t;
    if (k > 0 || gradients.h0.defined()) {
      product_out(from_h, d_gates.select(0, t), weights_h);
    }
  }
  if (gradients.h0.defined()) {
    params.t = kNoTime;
    check_launch(launch_sequence_gradients(params, stream));
    gradients.h0.copy_(d_h);
  }
  if (gradients.c0.defined()) {
    gradients.c0.copy_(d_cell);
  }

  const Tensor d_gates_of_steps = d_gates.view({steps * batch, 3 * state_size});
  if (gradients.bias.defined()) {
    Tensor d_bias = gradients.bias;
    at::sum_out(d_bias, d_gates_of_steps, /*dim=*/0);
  }
  if (gradients.weights.defined()) {
    const Tensor old_h = device.empty({steps, batch, state_size}, dtype);
    if (steps > 0) {
      const OldStatesParams<scalar_t> old_states{
          .steps = steps,
          .rows = batch,
          .state_size = state_size,
          .reverse = reverse,
          .rows_of_sequence = params.rows_of_sequence,
          .output = steps_of<scalar_t>(arguments.output),
          .h0 = steps_of<scalar_t>(arguments.h0),
          .old_h = old_h.mutable_data_ptr<scalar_t>(),
      };
      check_launch(launch_old_states(old_states, stream));
    }
    const Tensor d_gates_t = d_gates_of_steps.t();
    product_out(h_columns(gradients.weights), d_gates_t, old_h.view({steps * batch, state_size}));
    product_out(input_columns(gradients.weights),
                d_gates_t,
                input_of_steps(arguments.input, arguments.lengths)
                    .reshape({steps * batch, input_features}));
  }
  if (gradients.input.defined()) {
    product_out(gradients.input.view({steps * batch, input_features}),
                d_gates_of_steps,
                input_columns(arguments.weights));
  }
}

OptionalGradients sequence_backward(const std::optional<Tensor>& grad_output,
                                    const std::optional<Tensor>& grad_h_n,
                                    const std::optional<Tensor>& grad_c_n,
                                    const std::optional<Tensor>& grad_cells,
                                    const Tensor& output,
                                    const Tensor& cells,
                                    const Tensor& gates,
                                    const Tensor& input,
                                    const Tensor& weights,
                                    const std::optional<Tensor>& bias,
                                    const std::optional<Tensor>& h0,
                                    const std::optional<Tensor>& c0,
                                    const std::optional<Tensor>& lengths,
                                    const std::optional<Tensor>& reset,
                                    bool reverse,
                                    std::array<bool, 5> output_mask) {
  const SequenceBackwardArguments arguments{grad_output,
                                            grad_h_n,
                                            grad_c_n,
                                            grad_cells,
                                            output,
                                            cells,
                                            gates,
                                            input,
                                            weights,
                                            bias,
                                            h0,
                                            c0,
                                            lengths,
                                            reset};
  const auto sizes = check<int64_t>(arguments);
  const Device device(input);
  const auto dtype = input.scalar_type();
  const bool any_given =
      is_given(grad_output) || is_given(grad_h_n) || is_given(grad_c_n) || is_given(grad_cells);
  const bool anything_to_do = any_given && sizes.batch * sizes.state_size > 0;
  const auto if_wanted = [&](Gradient gradient, at::IntArrayRef shape, at::ScalarType of) {
    if (!output_mask[gradient]) {
      return Tensor();
    }
    const Tensor tensor = device.empty(shape, of);
    return anything_to_do ? tensor : tensor.zero_();
  };
  const Gradients gradients{
      .input = if_wanted(kInput, input.sizes(), dtype),
      .weights = if_wanted(kWeights, weights.sizes(), dtype),
      .bias = if_wanted(kBias, {3 * sizes.state_size}, dtype),
      .h0 = if_wanted(kH0, {sizes.batch, sizes.state_size}, dtype),
      .c0 = if_wanted(kC0, {sizes.batch, sizes.state_size}, final_cell_dtype(input, c0))};
  if (anything_to_do && gradients.any_wanted()) {
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, dtype, "lltm::sequence_backward", [&] {
          run<scalar_t>(gradients, arguments, sizes, device, reverse);
        });
  }
  return {if_defined(gradients.input),
          if_defined(gradients.weights),
          if_defined(gradients.bias),
          if_defined(gradients.h0),
          if_defined(gradients.c0)};
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CUDA, m) {
  m.impl("sequence_backward", TORCH_FN(sequence_backward));
}

}  // namespace lltm::cuda
