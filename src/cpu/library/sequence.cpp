// Everything is computed in the accumulation type, float for 16-bit tensors. The product with the
// inputs, z_x, is not rounded, nor is z before the cell reads it. The cell state is carried
// unrounded, and rounded only where it is written. h alone is rounded in every step, as in output.
#include "sequence.h"

#include "../../cell/products.h"
#include "../../dispatch/optional_tensor.h"
#include "../../dispatch/without_autocast.h"
#include "../kernel_arguments.h"
#include "../parallel.h"
#include "../schedule.h"
#include "blocks.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <type_traits>

namespace lltm::cpu {
namespace {

using at::Tensor;

/// One step of some rows, once the product with h has been added to z.
template <typename scalar_t>
struct StepParams {
  const Schedule& schedule;
  int64_t first_place;
  int64_t t;
  int64_t state_size;
  accumulate_t<scalar_t>* z;     // (rows, 3*state_size)
  accumulate_t<scalar_t>* h;     // (rows, state_size)
  accumulate_t<scalar_t>* cell;  // (rows, state_size)
  scalar_t* output;              // (steps, batch, state_size)
  scalar_t* cells;               // (steps, batch, state_size), or null where not kept
  scalar_t* gates;               // (steps, batch, 3*state_size), or null where not kept
};

template <typename scalar_t>
void run_step(const StepParams<scalar_t>& params, int64_t begin, int64_t end) {
  using acc_t = accumulate_t<scalar_t>;
  const int64_t state_size = params.state_size;
  pointwise_kernels<acc_t>(CellType::kLltm)
      .forward({state_size, params.z, params.cell, params.h, params.cell}, begin, end);
  const auto round = [](const acc_t* from, scalar_t* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      to[i] = static_cast<scalar_t>(from[i]);
    }
  };
  for (int64_t place = begin; place < end; ++place) {
    const int64_t row =
        params.t * params.schedule.steps.batch + params.schedule.row(params.first_place + place);
    acc_t* h = params.h + place * state_size;
    scalar_t* output = params.output + row * state_size;
    round(h, output, state_size);
    if constexpr (!std::is_same_v<scalar_t, acc_t>) {
      for (int64_t i = 0; i < state_size; ++i) {
        h[i] = static_cast<acc_t>(output[i]);
      }
    }
    if (params.cells != nullptr) {
      round(params.cell + place * state_size, params.cells + row * state_size, state_size);
      round(params.z + place * 3 * state_size, params.gates + row * 3 * state_size, 3 * state_size);
    }
  }
}

template <typename scalar_t>
void run_forward(const SequenceOutputs& outputs,
                 const SequenceArguments& arguments,
                 const SequenceSizes<int64_t>& sizes,
                 const Schedule& schedule) {
  using acc_t = accumulate_t<scalar_t>;
  const auto& [steps, batch, input_features, state_size] = sizes;
  const auto accumulated = c10::CppTypeToScalarType<acc_t>::value;
  const Tensor weights = arguments.weights.to(accumulated);
  const Tensor of_h = h_columns(weights), of_input = input_columns(weights);
  const Tensor bias = is_given(arguments.bias) ? arguments.bias->to(accumulated) : Tensor();
  const bool keep = outputs.cells.size(0) > 0;

  for_each_block(sizes, sizeof(acc_t), [&](const Span& places, int64_t steps_of_chunk) {
    const PlacesOfBlock block(schedule, places);
    Tensor h = block.gather_or_zeros(arguments.h0, state_size, accumulated);
    Tensor cell = block.gather_or_zeros(arguments.c0, state_size, accumulated);
    for (int64_t first = 0; first < steps; first += steps_of_chunk) {
      const int64_t last = std::min(first + steps_of_chunk, steps);
      const Chunk chunk(schedule, first, last, places);
      if (chunk.rows() == 0) {
        continue;
      }
      const Tensor x = chunk.gather(arguments.input).to(accumulated);
      const Tensor z = bias.defined() ? at::addmm(bias, x, of_input.t()) : at::mm(x, of_input.t());
      for (int64_t k = first; k < last; ++k) {
        const int64_t t = schedule.steps.step(k);
        const int64_t running = chunk.running(t);
        if (running == 0) {
          continue;
        }
        block.zero_where_reset(t, running, {h, cell});
        Tensor z_t = chunk.at_time(z, t);
        z_t.addmm_(h.narrow(0, 0, running), of_h.t());
        const StepParams<scalar_t> params{
            .schedule = schedule,
            .first_place = places.begin,
            .t = t,
            .state_size = state_size,
            .z = z_t.mutable_data_ptr<acc_t>(),
            .h = h.mutable_data_ptr<acc_t>(),
            .cell = cell.mutable_data_ptr<acc_t>(),
            .output = outputs.output.mutable_data_ptr<scalar_t>(),
            .cells = keep ? outputs.cells.mutable_data_ptr<scalar_t>() : nullptr,
            .gates = keep ? outputs.gates.mutable_data_ptr<scalar_t>() : nullptr};
        for_each_row(
            running, state_size, [&](int64_t begin, int64_t end) { run_step(params, begin, end); });
      }
    }
    block.scatter(outputs.h_n, h);
    block.scatter(outputs.c_n, cell);
  });
}

/// The h that each step of a chunk starts from: h0 at a row's first step, zero after a reset, else
/// the output of the step that was run before.
template <typename scalar_t>
Tensor old_h_of(const Chunk& chunk, const Tensor& h0, const Tensor& output) {
  using acc_t = accumulate_t<scalar_t>;
  const Steps& steps = chunk.schedule().steps;
  const int64_t state_size = output.size(2);
  const Tensor old_h =
      at::zeros({chunk.rows(), state_size}, c10::CppTypeToScalarType<acc_t>::value);
  const scalar_t* const output_data = output.const_data_ptr<scalar_t>();
  const scalar_t* const h0_data = data_or_null<scalar_t>(h0);
  for (int64_t t = chunk.times().begin; t < chunk.times().end; ++t) {
    const int64_t running = chunk.running(t);
    if (running == 0) {
      continue;
    }
    acc_t* const to = chunk.at_time(old_h, t).mutable_data_ptr<acc_t>();
    for_each_task(running, running * state_size, kShortCopies, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = chunk.schedule().row(chunk.places().begin + i);
        if (steps.resets(t, row)) {
          continue;
        }
        const scalar_t* from = h0_data != nullptr ? h0_data + row * state_size : nullptr;
        if (!steps.is_first(t, row)) {
          from = output_data + (steps.before(t) * steps.batch + row) * state_size;
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
void run_backward(const SequenceGradients& gradients,
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
  const auto zeros_if = [&, accumulated](const Tensor& wanted) {
    return wanted.defined() ? at::zeros(wanted.sizes(), accumulated) : Tensor();
  };
  Tensor d_weights = zeros_if(gradients.weights);
  Tensor d_bias = zeros_if(gradients.bias);
  const auto& pointwise = pointwise_kernels<acc_t>(CellType::kLltm);

  for_each_block(sizes, sizeof(acc_t), [&](const Span& places, int64_t steps_of_chunk) {
    const PlacesOfBlock block(schedule, places);
    // The gradients of the state that is passed between two steps.
    Tensor dh = block.gather_or_zeros(arguments.grad_h_n, state_size, accumulated);
    Tensor d_cell = block.gather_or_zeros(arguments.grad_c_n, state_size, accumulated);
    for (int64_t last = steps; last > 0; last -= steps_of_chunk) {
      const int64_t first = std::max<int64_t>(0, last - steps_of_chunk);
      const Chunk chunk(schedule, first, last, places);
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
        const int64_t t = schedule.steps.step(k);
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
        const BackwardParams<acc_t> params{
            .state_size = state_size,
            .grad_h = dh_t.const_data_ptr<acc_t>(),
            .grad_cell = d_cell_t.const_data_ptr<acc_t>(),
            .gates = dz_t.const_data_ptr<acc_t>(),
            .old_cell = nullptr,
            .new_cell = chunk.at_time(cells, t).template const_data_ptr<acc_t>(),
            .d_gates = dz_t.mutable_data_ptr<acc_t>(),
            .d_old_cell = d_cell_t.mutable_data_ptr<acc_t>()};
        for_each_row(running, state_size, [&](int64_t begin, int64_t end) {
          pointwise.backward(params, begin, end);
        });
        if (k > 0 || gradients.h0.defined()) {
          at::mm_out(dh_t, dz_t, of_h);
        }
        block.zero_where_reset(t, running, {dh, d_cell});
      }

      if (d_bias.defined()) {
        d_bias.add_(dz.sum(0));
      }
      if (d_weights.defined()) {
        const Tensor old_h = old_h_of<scalar_t>(chunk, h0, output);
        const Tensor x = chunk.gather(arguments.input).to(accumulated);
        h_columns(d_weights).addmm_(dz.t(), old_h);
        input_columns(d_weights).addmm_(dz.t(), x);
      }
      if (gradients.gates.defined()) {
        chunk.scatter(gradients.gates, dz);
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

SequenceSizes<int64_t> sizes_of(const SequenceArguments& arguments) {
  const Tensor& input = arguments.input;
  return {.steps = input.size(0),
          .batch = input.size(1),
          .input_features = input.size(2),
          .state_size = arguments.weights.size(0) / 3};
}

}  // namespace

void library_sequence_out(const SequenceOutputs& outputs,
                          const SequenceArguments& arguments,
                          bool reverse) {
  zero_if_not_run(arguments.lengths, {outputs.output, outputs.cells, outputs.gates});
  const StepsOfCall call(arguments, reverse);
  const Schedule schedule(call.steps);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, arguments.input.scalar_type(), "lltm::sequence", [&] {
        run_forward<scalar_t>(outputs, arguments, sizes_of(arguments), schedule);
      });
}

void library_sequence_backward_out(const SequenceGradients& gradients,
                                   const SequenceBackwardArguments& arguments,
                                   bool reverse) {
  zero_if_not_run(arguments.lengths, {gradients.input, gradients.gates});
  const StepsOfCall call(arguments.sequence(), reverse);
  const Schedule schedule(call.steps);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, arguments.input.scalar_type(), "lltm::sequence_backward", [&] {
        run_backward<scalar_t>(gradients, arguments, sizes_of(arguments.sequence()), schedule);
      });
}

}  // namespace lltm::cpu
