// lltm::sequence_backward and lltm::lstm_backward on CUDA.
//
// Computes d_gates of each step, from the last step that was run to the first. The product of
// d_gates of the following step with the weights is the gradient of h, from which a step's own
// d_gates are computed, in one launch or two. Then d_input and d_weights are computed over all
// steps: in float32 usually by the kernel of the cell's products, otherwise by ATen. The gradients
// of the state are carried in the accumulation type. d_gates are rounded, like those of the cell.
#include "../cell/with_cell.h"
#include "../dispatch/optional_tensor.h"
#include "../operators/operators.h"
#include "../operators/recurrent_gradients.h"
#include "kernels/backward/kernels.h"
#include "kernels/sequence/kernels.h"
#include "kernels/transpose.h"
#include "packed_rows.h"
#include "plan/plan.h"
#include "plan/sequence_gradients.h"
#include "recurrence.h"
#include "runtime/device.h"
#include "runtime/launch_check.h"
#include "runtime/rows.h"
#include "sequence.h"

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <torch/library.h>

#include <cstdint>
#include <limits>
#include <type_traits>

namespace lltm::cuda {
namespace {

using at::Tensor;

/// Launches the kernel that computes a step and its product.
template <typename Cell, typename scalar_t>
cudaError_t launch_with_product(const SequenceGradientsParams<scalar_t>& params,
                                const Matrix& weights_h,
                                Arithmetic arithmetic,
                                const SequenceGradientChoice& plan,
                                cudaStream_t stream) {
  const TileShape& tile = plan.candidate->tile;
  const int ranks = plan.estimate.ranks;
  return with_arithmetic(arithmetic, [&]<Arithmetic kArithmetic>() {
    if constexpr (std::is_same_v<scalar_t, TensorElement<kArithmetic>>) {
      if (plan.candidate->group == Group::kHopper) {
        return launch_sequence_gradient_wgmma<Cell, kArithmetic>(
            params, weights_h, tile, ranks, stream);
      }
      if constexpr (std::is_same_v<Cell, cell::Lltm>) {
        return launch_sequence_gradient_tiles<kArithmetic>(params, weights_h, tile, ranks, stream);
      }
    }
    return cudaErrorInvalidValue;  // other tensors; those of float64 have no arithmetic at all
  });
}

/// A contiguous tensor that starts at a multiple of 16 bytes: a copy if `tensor` is not one.
Tensor contiguous_vectors(const Tensor& tensor) {
  const Tensor contiguous = tensor.contiguous();
  const bool aligned = reinterpret_cast<uintptr_t>(contiguous.const_data_ptr()) % 16 == 0;
  return aligned ? contiguous : contiguous.clone();
}

/// A transposed copy that TMA can describe.
Tensor transposed(const Tensor& matrix, const Device& device) {
  const Tensor copy = rows_of_vectors(matrix.size(1), matrix.size(0), matrix.scalar_type(), device);
  check_launch(launch_transpose({.element_size = static_cast<int>(matrix.element_size()),
                                 .rows = matrix.size(0),
                                 .columns = matrix.size(1),
                                 .from = matrix.const_data_ptr(),
                                 .from_strides = {matrix.stride(0), matrix.stride(1)},
                                 .to = copy.mutable_data_ptr(),
                                 .to_stride = copy.stride(0)},
                                device.stream()));
  return copy;
}

/// A mask of shape (steps, batch, 1) that is true beyond the lengths.
Tensor beyond_lengths(int64_t steps, const Tensor& lengths) {
  return at::arange(steps, lengths.options()).unsqueeze(1).ge(lengths).unsqueeze(2);
}

/// How a backward is computed: by one kernel for all steps or, if that is null, step by step.
struct SequenceBackwardPlan {
  const RecurrenceCandidate* recurrence;
  SequenceGradientChoice step;
};

SequenceBackwardPlan plan_sequence_backward(const RecurrentBackwardArguments& arguments,
                                            const SequenceSizes<int64_t>& sizes,
                                            const DeviceFacts& facts) {
  const auto arithmetic = arithmetic_of(arguments.output.scalar_type());
  const RecurrenceShape shape{.cell = arguments.sequence.cell,
                              .arithmetic = arithmetic,
                              .steps = sizes.steps,
                              .rows = sizes.batch,
                              .input_features = sizes.input_features,
                              .state_size = sizes.state_size,
                              .backward = true,
                              .in_pairs = is_in_pairs(arguments, sizes)};
  const SequenceGradientChoice step = choose(
      SequenceGradientShape{arithmetic, sizes.steps, sizes.batch, sizes.state_size, sizes.gates},
      facts,
      selection());
  const double us = static_cast<double>(sizes.steps) * step.estimate.us;
  return {plan_recurrence(facts, shape, us), step};
}

/// Computes d_gates of all steps, a (steps*batch, gates) matrix, and d_h0 and d_c0.
template <typename scalar_t>
void run_steps(const Tensor& d_gates,
               const RecurrentGradients& gradients,
               const RecurrentBackwardArguments& arguments,
               const SequenceSizes<int64_t>& sizes,
               const SequenceGradientChoice& choice,
               const Device& device,
               bool reverse) {
  using acc_t = accumulate_t<scalar_t>;
  const int64_t steps = sizes.steps, batch = sizes.batch, state_size = sizes.state_size;
  const auto accumulated = c10::CppTypeToScalarType<acc_t>::value;
  const RecurrentArguments& sequence = arguments.sequence;
  const cudaStream_t stream = device.stream();
  const auto begin = [&](const std::optional<Tensor>& incoming) {
    Tensor state = device.empty({batch, state_size}, accumulated);
    return is_given(incoming) ? state.copy_(*incoming) : state.zero_();
  };
  const Tensor d_h = begin(arguments.grad_h_n);
  const Tensor d_cell = begin(arguments.grad_c_n);
  const Tensor gates = contiguous_vectors(arguments.gates);
  const Tensor cells = contiguous_vectors(arguments.cells);
  // A float32 c0 beside 16 bits is rounded, as all other cells are.
  const std::optional<Tensor> c0 =
      is_given(sequence.c0) ? std::optional(sequence.c0->to(cells.scalar_type())) : std::nullopt;

  const Group group = choice.candidate->group;
  Tensor weights_h, from_h;
  if (steps > 1 || (steps == 1 && gradients.h0.defined())) {
    weights_h = group == Group::kHopper ? transposed(sequence.weight_hh, device)
                                        : in_rows_of_vectors(sequence.weight_hh, device);
    if (group == Group::kLibrary) {
      from_h = device.empty({batch, state_size}, accumulated);
    }
  }

  SequenceGradientsParams<scalar_t> params{
      .steps = steps,
      .rows = batch,
      .state_size = state_size,
      .t = kNoTime,
      .last_t = kNoTime,
      .follows_a_product = false,
      .rows_of_sequence = rows_of_sequence(sequence),
      .grad_output = steps_of<scalar_t>(arguments.grad_output),
      .grad_cells = steps_of<scalar_t>(arguments.grad_cells),
      .from_h = from_h.defined() ? from_h.const_data_ptr<acc_t>() : nullptr,
      .d_h = d_h.mutable_data_ptr<acc_t>(),
      .d_cell = d_cell.mutable_data_ptr<acc_t>(),
      .gates = nullptr,
      .cells = nullptr,
      .d_gates = nullptr,
      .all_d_gates = d_gates.const_data_ptr<scalar_t>(),
      .d_gates_stride = d_gates.stride(0),
      .old_cells = old_states_of<scalar_t>(sequence, cells, c0, reverse),
  };
  // Runs the step at t after the one at params.last_t.
  const auto step = [&](int64_t t) {
    params.t = t;
    if (t != kNoTime) {
      params.gates = gates.const_data_ptr<scalar_t>() + t * batch * sizes.gates;
      params.cells = cells.const_data_ptr<scalar_t>() + t * batch * state_size;
      params.d_gates = d_gates.mutable_data_ptr<scalar_t>() + t * batch * params.d_gates_stride;
    }
    const bool has_product = params.last_t != kNoTime;
    if (has_product && group != Group::kLibrary) {
      const Arithmetic arithmetic = *arithmetic_of(cells.scalar_type());
      check_launch(with_cell(sequence.cell, [&]<typename Cell>() {
        return launch_with_product<Cell>(params, rows_of(weights_h), arithmetic, choice, stream);
      }));
    } else {
      if (has_product) {
        product_out(from_h, d_gates.narrow(0, params.last_t * batch, batch), weights_h);
      }
      check_launch(with_cell(sequence.cell, [&]<typename Cell>() {
        return launch_sequence_gradients<Cell>(params, stream);
      }));
    }
    params.last_t = t;
    params.follows_a_product = has_product;
  };
  for (int64_t k = steps - 1; k >= 0; --k) {
    step(reverse ? steps - 1 - k : k);
  }
  if (gradients.h0.defined()) {
    if (steps > 0) {
      step(kNoTime);
    }
    gradients.h0.copy_(d_h);
  }
  if (gradients.c0.defined()) {
    gradients.c0.copy_(d_cell);
  }
}

/// The h that each step started from, for all steps.
template <typename scalar_t>
Tensor old_states(const RecurrentBackwardArguments& arguments,
                  const SequenceSizes<int64_t>& sizes,
                  const Device& device,
                  bool reverse) {
  const Tensor old_h = rows_of_vectors(
      sizes.steps * sizes.batch, sizes.state_size, arguments.output.scalar_type(), device);
  if (sizes.steps > 0) {
    const OldStatesParams<scalar_t> params{
        .states = old_states_of<scalar_t>(
            arguments.sequence, arguments.output, arguments.sequence.h0, reverse),
        .state_size = sizes.state_size,
        .old_h = old_h.mutable_data_ptr<scalar_t>(),
        .old_h_stride = old_h.stride(0),
    };
    check_launch(launch_old_states(params, device.stream()));
  }
  return old_h;
}

/// d_bias, the sum of the rows of d_gates, as a product with ones, which reads them up to twice as
/// fast as at::sum. In 16 bits its sums are float32; float32 is not rounded to TF32.
void sum_rows(const Tensor& d_bias, const Tensor& d_gates) {
  Tensor sums = d_bias;
  const int64_t rows = d_gates.size(0);
  if (rows > std::numeric_limits<int32_t>::max()) {
    at::sum_out(sums, d_gates, /*dim=*/0);  // BLAS counts in 32 bits
  } else if (const Tensor ones = at::ones({1, rows}, d_gates.options()); d_gates.itemsize() == 2) {
    sums = at::empty({1, d_gates.size(1)}, d_gates.options().dtype(at::kFloat));
    product_out(sums, ones, d_gates);
    d_bias.copy_(sums.squeeze(0));
  } else {
    at::mv_out(sums, d_gates.t(), ones.squeeze(0));
  }
}

/// Computes the products over all steps by the tiles of the LLTM in float32, if they are faster
/// than the library. Returns whether it did. `weights` and `d_weights` are whole matrices, [h |
/// input]. Only d_weights read input and old_h, so their layout affects neither which kernel
/// computes d_input nor its bits.
bool run_products_of_lltm(const Tensor& d_weights,
                          const Tensor& d_input,
                          const Tensor& d_gates,
                          const Tensor& input,
                          const Tensor& weights,
                          const Tensor& old_h,
                          const Device& device,
                          const DeviceFacts& facts) {
  const int64_t state_size = weights.size(0) / 3;
  const BackwardShape shape{.arithmetic = arithmetic_of(input.scalar_type()),
                            .batch = input.size(0),
                            .input_features = input.size(1),
                            .state_size = state_size,
                            .vector_rows = are_describable_halves(weights),
                            .forms_d_old_h = false};
  const auto [candidate, estimate] = plan_backward(facts, shape);
  if (shape.arithmetic != Arithmetic::kFloat32 || candidate->group != Group::kHopper ||
      !has_rows(weights)) {
    return false;
  }
  // Without d_weights, any matrices take the places of these.
  const Rows inputs(d_weights.defined() ? input : weights);
  BackwardProblem problem{
      .batch = shape.batch,
      .input_features = shape.input_features,
      .state_size = state_size,
      .d_gates = d_gates.const_data_ptr(),
      .d_gates_stride = d_gates.stride(0),
      .input = inputs.matrix(),
      .weights = rows_of(weights),
      .weights_input = rows_of(weights).from(state_size, sizeof(float)),
      .old_h = rows_of(d_weights.defined() ? old_h : weights),
      .d_old_h = nullptr,
      .d_input = mutable_data_or_null<float>(d_input),
      .d_weights = mutable_data_or_null<float>(d_weights),
  };
  const Tensor packed = pack(problem, *shape.arithmetic, /*by_wgmma=*/true, device);
  const Tensor workspace =
      device.empty({workspace_floats(*shape.arithmetic, problem, estimate.plan)}, at::kFloat);
  check_launch(launch_backward_wgmma<Arithmetic::kFloat32>(
      problem, estimate.plan, workspace.mutable_data_ptr<float>(), device.stream()));
  return true;
}

template <typename scalar_t>
void run(const RecurrentGradients& gradients,
         const RecurrentBackwardArguments& arguments,
         const SequenceSizes<int64_t>& sizes,
         const Device& device,
         bool reverse) {
  const int64_t rows = sizes.steps * sizes.batch;
  const Tensor& all_input = arguments.sequence.input;
  const Tensor d_gates = rows_of_vectors(rows, sizes.gates, all_input.scalar_type(), device);
  const DeviceFacts facts = device.facts();
  bool products_done = false;
  const SequenceBackwardPlan plan = plan_sequence_backward(arguments, sizes, facts);
  if (plan.recurrence != nullptr) {
    products_done =
        run_recurrence_backward(*plan.recurrence, d_gates, gradients, arguments, device, reverse);
  } else {
    run_steps<scalar_t>(d_gates, gradients, arguments, sizes, plan.step, device, reverse);
    if (gradients.bias.defined()) {
      sum_rows(gradients.bias, d_gates);
    }
  }
  if (gradients.gates.defined()) {
    gradients.gates.view({rows, sizes.gates}).copy_(d_gates);
  }
  const bool wants_weights = gradients.weight_ih.defined() || gradients.weight_hh.defined();
  if (products_done || (!wants_weights && !gradients.input.defined())) {
    return;
  }
  const Tensor old_h =
      wants_weights ? old_states<scalar_t>(arguments, sizes, device, reverse) : Tensor();
  // Beyond a row's length d_gates are zeros, which a product must not multiply by a NaN or an
  // infinity.
  const bool has_lengths = is_given(arguments.sequence.lengths);
  const Tensor beyond =
      has_lengths ? beyond_lengths(sizes.steps, *arguments.sequence.lengths) : Tensor();
  const Tensor input = (has_lengths && wants_weights ? all_input.masked_fill(beyond, 0) : all_input)
                           .reshape({rows, sizes.input_features});
  const Tensor& weights = arguments.sequence.weights;
  const bool done =
      weights.defined() &&
      run_products_of_lltm(
          gradients.weights, gradients.input, d_gates, input, weights, old_h, device, facts);
  if (!done) {
    if (gradients.weight_hh.defined()) {
      product_out(gradients.weight_hh, d_gates.t(), old_h);
    }
    if (gradients.weight_ih.defined()) {
      product_out(gradients.weight_ih, d_gates.t(), input);
    }
    if (gradients.input.defined()) {
      product_out(gradients.input.view({rows, sizes.input_features}),
                  d_gates,
                  arguments.sequence.weight_ih);
    }
  }
  if (has_lengths && gradients.input.defined()) {
    gradients.input.masked_fill_(beyond, 0);
  }
}

void run(const RecurrentGradients& gradients,
         const RecurrentBackwardArguments& arguments,
         const SequenceSizes<int64_t>& sizes,
         const Device& device,
         bool reverse) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, arguments.output.scalar_type(), "lltm::sequence_backward", [&] {
        run<scalar_t>(gradients, arguments, sizes, device, reverse);
      });
}

auto empty_on(const Device& device) {
  return
      [&device](at::IntArrayRef shape, at::ScalarType dtype) { return device.empty(shape, dtype); };
}

template <typename Arguments, size_t count>
auto sequence_backward(const Arguments& arguments,
                       bool reverse,
                       std::array<bool, count> output_mask) {
  const auto sizes = check<int64_t>(arguments);
  const Device device(arguments.sequence.input);
  return gradients_of_sequence(
      arguments,
      sizes,
      output_mask,
      empty_on(device),
      [&](const RecurrentGradients& gradients, const RecurrentBackwardArguments& recurrent) {
        run(gradients, recurrent, sizes, device, reverse);
      });
}

/// The gradients of the gates and the state, without any product over all steps.
template <typename Arguments>
GateGradients gradients_of_gates(const Arguments& arguments,
                                 bool reverse,
                                 std::array<bool, 2> state_mask) {
  const auto sizes = check<int64_t>(arguments);
  const Device device(arguments.sequence.input);
  return gate_gradients_of_sequence(
      arguments,
      sizes,
      state_mask,
      empty_on(device),
      [&](const RecurrentGradients& gradients, const RecurrentBackwardArguments& recurrent) {
        run(gradients, recurrent, sizes, device, reverse);
      });
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CUDA, m) {
  m.impl("sequence_backward",
         op::SequenceBackward::kernel<sequence_backward<SequenceBackwardArguments, 5>>());
  m.impl("_sequence_gate_gradients",
         op::SequenceGateGradients::kernel<gradients_of_gates<SequenceBackwardArguments>>());
  m.impl("lstm_backward", op::LstmBackward::kernel<sequence_backward<LstmBackwardArguments, 6>>());
  m.impl("_lstm_gate_gradients",
         op::LstmGateGradients::kernel<gradients_of_gates<LstmBackwardArguments>>());
}

}  // namespace lltm::cuda
