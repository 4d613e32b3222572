// Everything is computed in the accumulation type, float for 16-bit tensors. The product with the
// inputs, z_x, is not rounded, nor is z before the cell reads it. The cell state is carried
// unrounded, and rounded only where it is written. h alone is rounded in every step, as in output.
#include "sequence.h"

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
  CellType cell_type;
  const Schedule& schedule;
  int64_t first_place;
  int64_t t;
  int64_t state_size;
  int64_t gate_columns;
  accumulate_t<scalar_t>* z;     // (rows, gate_columns)
  accumulate_t<scalar_t>* h;     // (rows, state_size)
  accumulate_t<scalar_t>* cell;  // (rows, state_size)
  scalar_t* output;              // (steps, batch, state_size)
  scalar_t* cells;               // (steps, batch, state_size), or null where not kept
  scalar_t* gates;               // (steps, batch, gate_columns), or null where not kept
};

template <typename scalar_t>
void run_step(const StepParams<scalar_t>& params, int64_t begin, int64_t end) {
  using acc_t = accumulate_t<scalar_t>;
  const int64_t state_size = params.state_size, gate_columns = params.gate_columns;
  pointwise_kernels<acc_t>(params.cell_type)
      .forward({.state_size = state_size,
                .gates = params.z,
                .old_cell = {.rounded = params.cell, .exact = nullptr},
                .new_h = params.h,
                .new_cell = {.rounded = params.cell, .exact = nullptr}},
               begin,
               end);
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
      round(params.z + place * gate_columns, params.gates + row * gate_columns, gate_columns);
    }
  }
}

template <typename scalar_t>
void run_forward(const SequenceOutputs& outputs,
                 const RecurrentArguments& arguments,
                 const SequenceSizes<int64_t>& sizes,
                 const Schedule& schedule) {
  using acc_t = accumulate_t<scalar_t>;
  const auto& [steps, batch, input_features, state_size, gates] = sizes;
  const auto accumulated = c10::CppTypeToScalarType<acc_t>::value;
  const Tensor weight_hh = arguments.weight_hh.to(accumulated);
  const Tensor weight_ih = arguments.weight_ih.to(accumulated);
  const Tensor bias = is_given(arguments.bias) ? arguments.bias->to(accumulated) : Tensor();
  const bool keep = outputs.cells.size(0) > 0;

  for_each_block(sizes, sizeof(acc_t), [&](const Span& places, int64_t steps_of_chunk) {
    const BlockPlaces block(schedule, places);
    Tensor h = block.gather_or_zeros(arguments.h0, state_size, accumulated);
    Tensor cell = block.gather_or_zeros(arguments.c0, state_size, accumulated);
    for (int64_t first = 0; first < steps; first += steps_of_chunk) {
      const int64_t last = std::min(first + steps_of_chunk, steps);
      const Chunk chunk(schedule, first, last, places);
      if (chunk.rows() == 0) {
        continue;
      }
      const Tensor x = chunk.gather(arguments.input).to(accumulated);
      const Tensor z =
          bias.defined() ? at::addmm(bias, x, weight_ih.t()) : at::mm(x, weight_ih.t());
      for (int64_t k = first; k < last; ++k) {
        const int64_t t = schedule.steps.step(k);
        const int64_t running = chunk.running(t);
        if (running == 0) {
          continue;
        }
        block.zero_where_reset(t, running, {h, cell});
        Tensor z_t = chunk.at_time(z, t);
        z_t.addmm_(h.narrow(0, 0, running), weight_hh.t());
        const StepParams<scalar_t> params{
            .cell_type = arguments.cell,
            .schedule = schedule,
            .first_place = places.begin,
            .t = t,
            .state_size = state_size,
            .gate_columns = gates,
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

/// The h or c that each step of a chunk starts from (Steps::start_of). `initial` and `results` are
/// contiguous; `initial` may be undefined.
template <typename scalar_t>
Tensor states_before(const Chunk& chunk, const Tensor& initial, const Tensor& results) {
  using acc_t = accumulate_t<scalar_t>;
  const Steps& steps = chunk.schedule().steps;
  const int64_t state_size = results.size(2);
  const Tensor states =
      at::zeros({chunk.rows(), state_size}, c10::CppTypeToScalarType<acc_t>::value);
  const scalar_t* const results_data = results.const_data_ptr<scalar_t>();
  const scalar_t* const initial_data = data_or_null<scalar_t>(initial);
  for (int64_t t = chunk.times().begin; t < chunk.times().end; ++t) {
    const int64_t running = chunk.running(t);
    if (running == 0) {
      continue;
    }
    acc_t* const to = chunk.at_time(states, t).mutable_data_ptr<acc_t>();
    for_each_task(running, running * state_size, kShortCopies, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = chunk.schedule().row(chunk.places().begin + i);
        if (const scalar_t* const from =
                steps.start_of(t, row, state_size, initial_data, results_data)) {
          std::copy_n(from, state_size, to + i * state_size);
        }
      }
    });
  }
  return states;
}

/// The backward pass, in chunks of steps from the last to the first: first dz of each step, then
/// the products of all steps of the chunk.
template <typename scalar_t>
class Backward {
  using acc_t = accumulate_t<scalar_t>;
  static constexpr auto kAccumulated = c10::CppTypeToScalarType<acc_t>::value;

 public:
  Backward(const RecurrentGradients& gradients,
           const RecurrentBackwardArguments& arguments,
           const SequenceSizes<int64_t>& sizes,
           const Schedule& schedule)
      : gradients_(gradients),
        arguments_(arguments),
        sizes_(sizes),
        schedule_(schedule),
        weight_hh_(arguments.sequence.weight_hh.to(kAccumulated)),
        weight_ih_(arguments.sequence.weight_ih.to(kAccumulated)),
        output_(arguments.output.contiguous()),
        cells_(arguments.cells.contiguous()),
        h0_(rounded(arguments.sequence.h0)),
        c0_(rounded(arguments.sequence.c0)),
        d_weight_ih_(zeros_if_wanted(gradients.weight_ih)),
        d_weight_hh_(zeros_if_wanted(gradients.weight_hh)),
        d_bias_(zeros_if_wanted(gradients.bias)) {}

  void run() {
    for_each_block(sizes_, sizeof(acc_t), [&](const Span& places, int64_t steps_of_chunk) {
      run_block(BlockPlaces(schedule_, places), places, steps_of_chunk);
    });
    round(gradients_.weight_ih, d_weight_ih_);
    round(gradients_.weight_hh, d_weight_hh_);
    round(gradients_.bias, d_bias_);
  }

 private:
  /// The gradients of the state that is passed between two steps.
  struct Carried {
    Tensor h, cell;
  };

  /// A float32 c0 beside 16 bits is rounded, as all other cells are.
  static Tensor rounded(const std::optional<Tensor>& state) {
    constexpr auto dtype = c10::CppTypeToScalarType<scalar_t>::value;
    return is_given(state) ? state->to(dtype).contiguous() : Tensor();
  }
  static Tensor zeros_if_wanted(const Tensor& gradient) {
    return gradient.defined() ? at::zeros(gradient.sizes(), kAccumulated) : Tensor();
  }
  static void round(Tensor to, const Tensor& from) {
    if (to.defined()) {
      to.copy_(from);
    }
  }
  /// A copy of the chunk's rows, or an undefined tensor if there are none.
  static Tensor rows_of(const Chunk& chunk, const std::optional<Tensor>& steps) {
    return is_given(steps) ? chunk.gather(*steps).to(kAccumulated,
                                                     /*non_blocking=*/false,
                                                     /*copy=*/true,
                                                     at::MemoryFormat::Contiguous)
                           : Tensor();
  }

  void run_block(const BlockPlaces& block, const Span& places, int64_t steps_of_chunk) {
    const int64_t state_size = sizes_.state_size;
    const Carried carried{block.gather_or_zeros(arguments_.grad_h_n, state_size, kAccumulated),
                          block.gather_or_zeros(arguments_.grad_c_n, state_size, kAccumulated)};
    for (int64_t last = sizes_.steps; last > 0; last -= steps_of_chunk) {
      const int64_t first = std::max<int64_t>(0, last - steps_of_chunk);
      const Chunk chunk(schedule_, first, last, places);
      if (chunk.rows() > 0) {
        add_products(chunk, run_steps(block, chunk, first, last, carried));
      }
    }
    if (gradients_.h0.defined()) {
      block.scatter(gradients_.h0, carried.h);
    }
    if (gradients_.c0.defined()) {
      block.scatter(gradients_.c0, carried.cell);
    }
  }

  /// Returns dz of the steps [first, last), counted in the order of execution.
  Tensor run_steps(const BlockPlaces& block,
                   const Chunk& chunk,
                   int64_t first,
                   int64_t last,
                   const Carried& carried) const {
    const Tensor dz = rows_of(chunk, arguments_.gates);  // z, until its step overwrites it with dz
    const Tensor cells = chunk.gather(cells_).to(kAccumulated).contiguous();
    const Tensor old_cells = arguments_.sequence.cell == CellType::kLstm
                                 ? states_before<scalar_t>(chunk, c0_, cells_)
                                 : Tensor();
    const Tensor grad_output = rows_of(chunk, arguments_.grad_output);
    const Tensor grad_cells = rows_of(chunk, arguments_.grad_cells);
    const auto& pointwise = pointwise_kernels<acc_t>(arguments_.sequence.cell);
    for (int64_t k = last - 1; k >= first; --k) {
      const int64_t t = schedule_.steps.step(k);
      const int64_t running = chunk.running(t);
      if (running == 0) {
        continue;
      }
      const auto data_at_time = [&](const Tensor& rows) {
        return data_or_null<acc_t>(rows.defined() ? chunk.at_time(rows, t) : rows);
      };
      Tensor d_h = carried.h.narrow(0, 0, running);
      Tensor d_cell = carried.cell.narrow(0, 0, running);
      if (grad_output.defined()) {
        d_h.add_(chunk.at_time(grad_output, t));
      }
      if (grad_cells.defined()) {
        d_cell.add_(chunk.at_time(grad_cells, t));
      }
      const Tensor dz_t = chunk.at_time(dz, t);
      const BackwardParams<acc_t> params{.state_size = sizes_.state_size,
                                         .grad_h = d_h.const_data_ptr<acc_t>(),
                                         .grad_cell = d_cell.const_data_ptr<acc_t>(),
                                         .gates = dz_t.const_data_ptr<acc_t>(),
                                         .old_cell = data_at_time(old_cells),
                                         .new_cell = data_at_time(cells),
                                         .d_gates = dz_t.mutable_data_ptr<acc_t>(),
                                         .d_old_cell = d_cell.mutable_data_ptr<acc_t>()};
      for_each_row(running, sizes_.state_size, [&](int64_t begin, int64_t end) {
        pointwise.backward(params, begin, end);
      });
      if (k > 0 || gradients_.h0.defined()) {
        at::mm_out(d_h, dz_t, weight_hh_);
      }
      block.zero_where_reset(t, running, {carried.h, carried.cell});
    }
    return dz;
  }

  /// Adds what the steps of a chunk contribute to the gradients of the parameters, and writes those
  /// of their inputs.
  void add_products(const Chunk& chunk, const Tensor& dz) {
    if (d_bias_.defined()) {
      d_bias_.add_(dz.sum(0));
    }
    if (d_weight_hh_.defined()) {
      d_weight_hh_.addmm_(dz.t(), states_before<scalar_t>(chunk, h0_, output_));
    }
    if (d_weight_ih_.defined()) {
      d_weight_ih_.addmm_(dz.t(), chunk.gather(arguments_.sequence.input).to(kAccumulated));
    }
    if (gradients_.gates.defined()) {
      chunk.scatter(gradients_.gates, dz);
    }
    if (gradients_.input.defined()) {
      chunk.scatter(gradients_.input, at::mm(dz, weight_ih_));
    }
  }

  const RecurrentGradients& gradients_;
  const RecurrentBackwardArguments& arguments_;
  const SequenceSizes<int64_t>& sizes_;
  const Schedule& schedule_;
  const Tensor weight_hh_, weight_ih_, output_, cells_, h0_, c0_;
  Tensor d_weight_ih_, d_weight_hh_, d_bias_;
};

}  // namespace

void library_sequence_out(const SequenceOutputs& outputs,
                          const RecurrentArguments& arguments,
                          const SequenceSizes<int64_t>& sizes,
                          bool reverse) {
  zero_if_not_run(arguments.lengths, {outputs.output, outputs.cells, outputs.gates});
  const CallSteps call(arguments, reverse);
  const Schedule schedule(call.steps);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, arguments.input.scalar_type(), "lltm::sequence", [&] {
        run_forward<scalar_t>(outputs, arguments, sizes, schedule);
      });
}

void library_sequence_backward_out(const RecurrentGradients& gradients,
                                   const RecurrentBackwardArguments& arguments,
                                   const SequenceSizes<int64_t>& sizes,
                                   bool reverse) {
  zero_if_not_run(arguments.sequence.lengths, {gradients.input, gradients.gates});
  const CallSteps call(arguments.sequence, reverse);
  const Schedule schedule(call.steps);
  const WithoutAutocast without_autocast;
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, arguments.output.scalar_type(), "lltm::sequence_backward", [&] {
        Backward<scalar_t>(gradients, arguments, sizes, schedule).run();
      });
}

}  // namespace lltm::cpu
