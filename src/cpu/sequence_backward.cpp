// lltm::sequence_backward on the CPU, in the accumulation type throughout.
#include "../checks.h"
#include "../dispatcher_kernel.h"
#include "../gradients.h"
#include "../optional_tensor.h"
#include "../products.h"
#include "../without_autocast.h"
#include "kernel_arguments.h"
#include "own_sequence.h"
#include "parallel.h"
#include "sequence.h"

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

namespace lltm::cpu {
namespace {

using at::Tensor;

/// The h that each step of a chunk starts from: h0 at a row's first step, zero after a reset, else
/// the output of the step that was run before.
template <typename scalar_t>
Tensor old_h_of(const Chunk& chunk, const Tensor& h0, const Tensor& output, const Tensor& reset) {
  using acc_t = accumulate_t<scalar_t>;
  const Schedule& schedule = chunk.schedule();
  const int64_t state_size = output.size(2);
  const Tensor old_h =
      at::zeros({chunk.rows(), state_size}, c10::CppTypeToScalarType<acc_t>::value);
  const scalar_t* const output_data = output.const_data_ptr<scalar_t>();
  const scalar_t* const h0_data = data_or_null<scalar_t>(h0);
  const bool* const reset_data = data_or_null<bool>(reset);
  for (int64_t t = chunk.times().begin; t < chunk.times().end; ++t) {
    const int64_t running = chunk.running(t);
    if (running == 0) {
      continue;
    }
    acc_t* const to = chunk.at_time(old_h, t).mutable_data_ptr<acc_t>();
    for_each_task(running, running * state_size, kShortCopies, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t place = chunk.places().begin + i;
        const int64_t row = schedule.row(place);
        if (reset_data != nullptr && reset_data[t * schedule.batch() + row]) {
          continue;
        }
        const scalar_t* from = h0_data != nullptr ? h0_data + row * state_size : nullptr;
        if (!schedule.starts(t, place)) {
          from = output_data + (schedule.before(t) * schedule.batch() + row) * state_size;
        }
        for (int64_t column = 0; from != nullptr && column < state_size; ++column) {
          to[i * state_size + column] = static_cast<acc_t>(from[column]);
        }
      }
    });
  }
  return old_h;
}

template <typename scalar_t>
void run(const SequenceGradients& gradients,
         const SequenceBackwardArguments& arguments,
         const SequenceSizes<int64_t>& sizes,
         const Schedule& schedule) {
  using acc_t = accumulate_t<scalar_t>;
  const WithoutAutocast without_autocast;
  const auto& [steps, batch, input_features, state_size] = sizes;
  const auto accumulated = c10::CppTypeToScalarType<acc_t>::value;
  const Tensor weights = arguments.weights.to(accumulated);
  const Tensor of_h = h_columns(weights), of_input = input_columns(weights);
  const Tensor output = arguments.output.contiguous();
  const Tensor h0 = contiguous_or_undefined(arguments.h0);
  const Tensor reset = contiguous_or_undefined(arguments.reset);
  const auto zeros_if = [&, accumulated](const Tensor& wanted) {
    return wanted.defined() ? at::zeros(wanted.sizes(), accumulated) : Tensor();
  };
  Tensor d_weights = zeros_if(gradients.weights);
  Tensor d_bias = zeros_if(gradients.bias);
  const auto& pointwise = pointwise_kernels<acc_t>();

  for_each_block(sizes, sizeof(acc_t), [&](const Span& places, int64_t steps_of_chunk) {
    const PlacesOfBlock block(schedule, places);
    // The gradients of the state that is passed between two steps.
    Tensor dh = block.gather_or_zeros(arguments.grad_h_n, state_size, accumulated);
    Tensor d_cell = block.gather_or_zeros(arguments.grad_c_n, state_size, accumulated);
    for (int64_t last = steps; last > 0; last -= steps_of_chunk) {
      const int64_t first = std::max<int64_t>(0, last - steps_of_chunk);
      const Chunk chunk(schedule, schedule.times(first, last), places);
      if (chunk.rows() == 0) {
        continue;
      }
      const auto copy_of = [&](const Tensor& tensor) {
        return chunk.gather(tensor).to(
            accumulated, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
      };
      const auto copy_if_given = [&](const std::optional<Tensor>& tensor) {
        return is_given(tensor) ? copy_of(*tensor) : Tensor();
      };
      const Tensor dz = copy_of(arguments.gates);  // z, until its step overwrites it with dz
      const Tensor cells = chunk.gather(arguments.cells).to(accumulated).contiguous();
      const Tensor grad_output = copy_if_given(arguments.grad_output);
      const Tensor grad_cells = copy_if_given(arguments.grad_cells);
      for (int64_t k = last - 1; k >= first; --k) {
        const int64_t t = schedule.time_of(k);
        const int64_t running = chunk.running(t);
        if (running == 0) {
          continue;
        }
        Tensor dh_t = dh.narrow(0, 0, running);
        Tensor d_cell_t = d_cell.narrow(0, 0, running);
        if (grad_output.defined()) {
          dh_t.add_(chunk.at_time(grad_output, t));
        }
        if (grad_cells.defined()) {
          d_cell_t.add_(chunk.at_time(grad_cells, t));
        }
        const Tensor dz_t = chunk.at_time(dz, t);
        const BackwardParams<acc_t> params{state_size,
                                           dh_t.const_data_ptr<acc_t>(),
                                           d_cell_t.const_data_ptr<acc_t>(),
                                           dz_t.const_data_ptr<acc_t>(),
                                           chunk.at_time(cells, t).template const_data_ptr<acc_t>(),
                                           dz_t.mutable_data_ptr<acc_t>(),
                                           d_cell_t.mutable_data_ptr<acc_t>()};
        for_each_row(running, state_size, [&](int64_t begin, int64_t end) {
          pointwise.backward(params, begin, end);
        });
        if (k > 0 || gradients.h0.defined()) {
          at::mm_out(dh_t, dz_t, of_h);
        }
        if (reset.defined()) {
          block.zero_where_reset(reset, t, running, {dh, d_cell});
        }
      }

      if (d_bias.defined()) {
        d_bias.add_(dz.sum(0));
      }
      if (d_weights.defined()) {
        const Tensor old_h = old_h_of<scalar_t>(chunk, h0, output, reset);
        const Tensor x = chunk.gather(arguments.input).to(accumulated);
        h_columns(d_weights).addmm_(dz.t(), old_h);
        input_columns(d_weights).addmm_(dz.t(), x);
      }
      if (gradients.input.defined()) {
        chunk.scatter(gradients.input, at::mm(dz, of_input));
      }
    }
    if (gradients.h0.defined()) {
      block.scatter(gradients.h0, dh);
    }
    if (gradients.c0.defined()) {
      block.scatter(gradients.c0, d_cell);
    }
  });
  const auto round = [](Tensor to, const Tensor& from) {
    if (to.defined()) {
      to.copy_(from);
    }
  };
  round(gradients.weights, d_weights);
  round(gradients.bias, d_bias);
}

OptionalGradients sequence_backward(const SequenceBackwardArguments& arguments,
                                    bool reverse,
                                    std::array<bool, 5> output_mask) {
  const auto sizes = check<int64_t>(arguments);
  const auto& [steps, batch, input_features, state_size] = sizes;
  const Tensor &input = arguments.input, &weights = arguments.weights;
  const bool anything_to_do = arguments.any_gradient() && batch * state_size > 0;
  // Our kernels write every element; the other path adds to zeros.
  const bool is_own = anything_to_do && has_own_sequence(weights);
  const auto new_if_wanted = [&](Gradient gradient, at::IntArrayRef shape, at::ScalarType dtype) {
    const auto options = input.options().dtype(dtype);
    return !output_mask[gradient] ? Tensor()
           : is_own               ? at::empty(shape, options)
                                  : at::zeros(shape, options);
  };
  const auto dtype = input.scalar_type();
  const SequenceGradients gradients{
      .input = new_if_wanted(kInput, input.sizes(), dtype),
      .weights = new_if_wanted(kWeights, weights.sizes(), dtype),
      .bias = new_if_wanted(kBias, {3 * state_size}, dtype),
      .h0 = new_if_wanted(kH0, {batch, state_size}, dtype),
      .c0 = new_if_wanted(kC0, {batch, state_size}, final_cell_dtype(arguments.sequence()))};
  if (is_own && gradients.any_wanted()) {
    own_sequence_backward_out(gradients, arguments, reverse);
  } else if (anything_to_do && gradients.any_wanted()) {
    const Schedule schedule(sizes, arguments.lengths, reverse);
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, input.scalar_type(), "lltm::sequence_backward", [&] {
          run<scalar_t>(gradients, arguments, sizes, schedule);
        });
  }
  return gradients.results();
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CPU, m) {
  m.impl("sequence_backward", dispatcher_kernel<sequence_backward, lltm::sequence_backward>());
}

}  // namespace lltm::cpu
