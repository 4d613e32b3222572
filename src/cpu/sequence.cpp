// lltm::sequence on the CPU.
//
// Everything is computed in the accumulation type, float for 16-bit tensors. The product with the
// inputs, z_x, is not rounded, nor is z before the cell reads it. The cell state is carried
// unrounded, and rounded only where it is written. h alone is rounded in every step, as in output.
#include "sequence.h"

#include "../checks.h"
#include "../dispatcher_kernel.h"
#include "../optional_tensor.h"
#include "../products.h"
#include "kernel_arguments.h"
#include "own_sequence.h"
#include "parallel.h"

#include <ATen/Dispatch.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

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
  pointwise_kernels<acc_t>().forward(
      {state_size, params.z, params.cell, params.h, params.cell}, begin, end);
  const auto round = [](const acc_t* from, scalar_t* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      to[i] = static_cast<scalar_t>(from[i]);
    }
  };
  for (int64_t place = begin; place < end; ++place) {
    const int64_t row =
        params.t * params.schedule.batch() + params.schedule.row(params.first_place + place);
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
void run(const SequenceOutputs& outputs,
         const SequenceArguments& arguments,
         const SequenceSizes<int64_t>& sizes,
         const Schedule& schedule,
         bool keep) {
  using acc_t = accumulate_t<scalar_t>;
  const auto& [steps, batch, input_features, state_size] = sizes;
  const auto accumulated = c10::CppTypeToScalarType<acc_t>::value;
  const Tensor weights = arguments.weights.to(accumulated);
  const Tensor of_h = h_columns(weights), of_input = input_columns(weights);
  const Tensor bias = is_given(arguments.bias) ? arguments.bias->to(accumulated) : Tensor();
  const Tensor reset = contiguous_or_undefined(arguments.reset);

  for_each_block(sizes, sizeof(acc_t), [&](const Span& places, int64_t steps_of_chunk) {
    const PlacesOfBlock block(schedule, places);
    Tensor h = block.gather_or_zeros(arguments.h0, state_size, accumulated);
    Tensor cell = block.gather_or_zeros(arguments.c0, state_size, accumulated);
    for (int64_t first = 0; first < steps; first += steps_of_chunk) {
      const int64_t last = std::min(first + steps_of_chunk, steps);
      const Chunk chunk(schedule, schedule.times(first, last), places);
      if (chunk.rows() == 0) {
        continue;
      }
      const Tensor x = chunk.gather(arguments.input).to(accumulated);
      const Tensor z = bias.defined() ? at::addmm(bias, x, of_input.t()) : at::mm(x, of_input.t());
      for (int64_t k = first; k < last; ++k) {
        const int64_t t = schedule.time_of(k);
        const int64_t running = chunk.running(t);
        if (running == 0) {
          continue;
        }
        if (reset.defined()) {
          block.zero_where_reset(reset, t, running, {h, cell});
        }
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

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> sequence(const SequenceArguments& arguments,
                                                            bool reverse,
                                                            bool keep) {
  const auto& [input, weights, bias, h0, c0, lengths, reset] = arguments;
  const auto sizes = check<int64_t>(arguments);
  const auto& [steps, batch, input_features, state_size] = sizes;
  const auto empty = [&](at::IntArrayRef shape, at::ScalarType dtype) -> Tensor {
    return at::detail::empty_cpu(shape, dtype);
  };
  const auto dtype = input.scalar_type();
  const auto of_steps = [&](int64_t count, int64_t columns) {
    return empty({count, sizes.batch, columns}, dtype);
  };
  const int64_t kept_steps = keep ? steps : 0;
  const SequenceOutputs outputs{.output = of_steps(steps, state_size),
                                .h_n = empty({batch, state_size}, dtype),
                                .c_n = empty({batch, state_size}, final_cell_dtype(arguments)),
                                .cells = of_steps(kept_steps, state_size),
                                .gates = of_steps(kept_steps, 3 * state_size)};
  if (batch * state_size > 0 && has_own_sequence(weights)) {
    own_sequence_out(outputs, arguments, reverse);
  } else if (batch * state_size > 0) {
    if (is_given(lengths)) {  // Steps beyond a row's length are not run; their results are zero.
      for (Tensor steps_of_rows : {outputs.output, outputs.cells, outputs.gates}) {
        steps_of_rows.zero_();
      }
    }
    const Schedule schedule(sizes, lengths, reverse);
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, input.scalar_type(), "lltm::sequence", [&] {
          run<scalar_t>(outputs, arguments, sizes, schedule, keep);
        });
  }
  return {outputs.output, outputs.h_n, outputs.c_n, outputs.cells, outputs.gates};
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CPU, m) {
  m.impl("sequence", dispatcher_kernel<sequence, lltm::sequence>());
}

}  // namespace lltm::cpu
