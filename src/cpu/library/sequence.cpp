// Everything is computed in the accumulation type, float for 16-bit tensors. The product with the
// inputs, z_x, is not rounded, nor is z before the cell reads it. The cell state, or a GRU's h, is
// carried unrounded, and rounded only where it is written. The h that is multiplied is rounded in
// every step, as in output.
#include "sequence.h"

#include "../../cell/column_runs.h"
#include "../../dispatch/optional_tensor.h"
#include "../../dispatch/without_autocast.h"
#include "../kernel_arguments.h"
#include "../parallel.h"
#include "../schedule.h"
#include "blocks.h"

#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <type_traits>
#include <vector>

namespace lltm::cpu {
namespace {

using at::Tensor;

/// One step of some rows, once the product with h has been added to z.
template <typename scalar_t>
struct StepParams {
  const CellDescriptor& cell_type;
  const Schedule& schedule;
  int64_t first_place;
  int64_t t;
  int64_t state_size;
  int64_t saved_columns;
  accumulate_t<scalar_t>* z;     // (rows, saved_columns)
  accumulate_t<scalar_t>* h;     // (rows, state_size)
  accumulate_t<scalar_t>* cell;  // (rows, state_size)
  scalar_t* output;              // (steps, batch, state_size)
  scalar_t* cells;               // (steps, batch, state_size), or null where not kept
  scalar_t* gates;               // (steps, batch, saved_columns), or null where not kept
};

template <typename scalar_t>
void run_step(const StepParams<scalar_t>& params, int64_t begin, int64_t end) {
  using acc_t = accumulate_t<scalar_t>;
  const int64_t state_size = params.state_size, saved_columns = params.saved_columns;
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
    }
    if (params.gates != nullptr) {
      round(params.z + place * saved_columns, params.gates + row * saved_columns, saved_columns);
    }
  }
}

/// z_x = x @ weight_ih.T + bias. Of what only h is added to, the bias alone.
Tensor input_product(const Tensor& x,
                     const Tensor& weight_ih,
                     const Tensor& bias,
                     const CellDescriptor& cell,
                     int64_t state_size) {
  if (cell.adds) {
    return bias.defined() ? at::addmm(bias, x, weight_ih.t()) : at::mm(x, weight_ih.t());
  }
  const Tensor z = at::empty({x.size(0), cell.saved * state_size}, x.options());
  z.copy_(bias);
  for (const ColumnRun& run : runs_of(cell.of_input, state_size)) {
    run.saved(z).addmm_(x, run.side(weight_ih).t());
  }
  return z;
}

/// The biases of what is saved, undefined if a cell with one has none.
Tensor bias_of(const RecurrentArguments& arguments, int64_t state_size, at::ScalarType dtype) {
  const CellDescriptor& cell = arguments.cell;
  if (cell.adds) {
    return is_given(arguments.bias) ? arguments.bias->to(dtype) : Tensor();
  }
  return saved_bias(cell, arguments.bias, arguments.bias_hh, state_size, dtype);
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
  const CellDescriptor& cell_type = arguments.cell;
  const Tensor bias = bias_of(arguments, state_size, accumulated);
  const auto gate_runs = runs_of(cell_type.of_gate, state_size);
  const auto kept = [&](const Tensor& steps) {
    return outputs.keep() ? mutable_data_or_null<scalar_t>(steps) : nullptr;
  };

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
      const Tensor z = input_product(x, weight_ih, bias, cell_type, state_size);
      for (int64_t k = first; k < last; ++k) {
        const int64_t t = schedule.steps.step(k);
        const int64_t running = chunk.running(t);
        if (running == 0) {
          continue;
        }
        block.zero_where_reset(t, running, {h, cell});
        Tensor z_t = chunk.at_time(z, t);
        for (const ColumnRun& run : gate_runs) {
          run.saved(z_t).addmm_(h.narrow(0, 0, running), run.side(weight_hh).t());
        }
        const StepParams<scalar_t> params{.cell_type = cell_type,
                                          .schedule = schedule,
                                          .first_place = places.begin,
                                          .t = t,
                                          .state_size = state_size,
                                          .saved_columns = z.size(1),
                                          .z = z_t.mutable_data_ptr<acc_t>(),
                                          .h = h.mutable_data_ptr<acc_t>(),
                                          .cell = cell.mutable_data_ptr<acc_t>(),
                                          .output = outputs.output.mutable_data_ptr<scalar_t>(),
                                          .cells = kept(outputs.cells),
                                          .gates = kept(outputs.gates)};
        for_each_row(
            running, state_size, [&](int64_t begin, int64_t end) { run_step(params, begin, end); });
      }
    }
    if (outputs.h_n.defined()) {
      block.scatter(outputs.h_n, h);
    }
    block.scatter(outputs.c_n, cell);
  });
}

/// The h or c that each step of a chunk starts from (Steps::start_of). `initial`, in the
/// accumulation type, and `results` are contiguous; `initial` may be undefined.
template <typename scalar_t>
Tensor states_before(const Chunk& chunk, const Tensor& initial, const Tensor& results) {
  using acc_t = accumulate_t<scalar_t>;
  const Steps& steps = chunk.schedule().steps;
  const int64_t state_size = results.size(2);
  const Tensor states =
      at::zeros({chunk.rows(), state_size}, c10::CppTypeToScalarType<acc_t>::value);
  const scalar_t* const results_data = results.const_data_ptr<scalar_t>();
  const acc_t* const initial_data = data_or_null<acc_t>(initial);
  for (int64_t t = chunk.times().begin; t < chunk.times().end; ++t) {
    const int64_t running = chunk.running(t);
    if (running == 0) {
      continue;
    }
    acc_t* const to = chunk.at_time(states, t).mutable_data_ptr<acc_t>();
    for_each_task(running, running * state_size, kShortCopies, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = chunk.schedule().row(chunk.places().begin + i);
        if (initial_data && steps.is_first(t, row) && !steps.resets(t, row)) {
          std::copy_n(initial_data + row * state_size, state_size, to + i * state_size);
        } else if (const scalar_t* const from =
                       steps.start_of<scalar_t>(t, row, state_size, nullptr, results_data)) {
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
        c0_(cell_.carries_h ? exact(arguments.sequence.c0) : rounded(arguments.sequence.c0)),
        d_weight_ih_(zeros_if_wanted(gradients.weight_ih)),
        d_weight_hh_(zeros_if_wanted(gradients.weight_hh)) {
    if (gradients.bias.defined() || gradients.bias_hh.defined()) {
      d_bias_ = at::zeros({cell_.saved * sizes.state_size}, kAccumulated);
    }
  }

  void run() {
    for_each_block(sizes_, sizeof(acc_t), [&](const Span& places, int64_t steps_of_chunk) {
      run_block(BlockPlaces(schedule_, places), places, steps_of_chunk);
    });
    round(gradients_.weight_ih, d_weight_ih_);
    round(gradients_.weight_hh, d_weight_hh_);
    const auto round_bias = [&](const Tensor& gradient, const std::vector<ColumnRun>& runs) {
      for (const ColumnRun& run : runs) {
        if (gradient.defined()) {
          round(run.side(gradient), run.saved(d_bias_));
        }
      }
    };
    round_bias(gradients_.bias, input_runs_);
    round_bias(gradients_.bias_hh, gate_runs_);
  }

 private:
  /// The gradients of the state that is passed between two steps.
  struct Carried {
    Tensor h, cell;
  };

  static Tensor exact(const std::optional<Tensor>& state) {
    return is_given(state) ? state->to(kAccumulated).contiguous() : Tensor();
  }
  /// A float32 c0 beside 16 bits is rounded, as all other cells are.
  static Tensor rounded(const std::optional<Tensor>& state) {
    constexpr auto dtype = c10::CppTypeToScalarType<scalar_t>::value;
    return exact(is_given(state) ? std::optional(state->to(dtype)) : std::nullopt);
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
      block.scatter(gradients_.c0, cell_.carries_h ? carried.cell + carried.h : carried.cell);
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
    const Tensor old_cells =
        cell_.reads_old_cell ? states_before<scalar_t>(chunk, c0_, cells_) : Tensor();
    const Tensor grad_output = rows_of(chunk, arguments_.grad_output);
    const Tensor grad_cells = rows_of(chunk, arguments_.grad_cells);
    const auto& pointwise = pointwise_kernels<acc_t>(cell_);
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
      if (k > 0 || gradients_.h0.defined() || (cell_.carries_h && gradients_.c0.defined())) {
        for (const ColumnRun& run : gate_runs_) {
          const bool is_first = &run == &gate_runs_.front();
          is_first ? at::mm_out(d_h, run.saved(dz_t), run.side(weight_hh_))
                   : d_h.addmm_(run.saved(dz_t), run.side(weight_hh_));
        }
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
    const auto add =
        [&](const Tensor& d_weights, const std::vector<ColumnRun>& runs, const Tensor& operands) {
          for (const ColumnRun& run : runs) {
            run.side(d_weights).addmm_(run.saved(dz).t(), operands);
          }
        };
    if (d_weight_hh_.defined()) {
      add(d_weight_hh_, gate_runs_, states_before<scalar_t>(chunk, h0_, output_));
    }
    if (d_weight_ih_.defined()) {
      add(d_weight_ih_, input_runs_, chunk.gather(arguments_.sequence.input).to(kAccumulated));
    }
    if (gradients_.gates.defined()) {
      chunk.scatter(gradients_.gates, dz);
    }
    if (gradients_.input.defined()) {
      Tensor d_input;
      for (const ColumnRun& run : input_runs_) {
        const Tensor part = at::mm(run.saved(dz), run.side(weight_ih_));
        d_input = d_input.defined() ? d_input.add_(part) : part;
      }
      chunk.scatter(gradients_.input, d_input);
    }
  }

  const RecurrentGradients& gradients_;
  const RecurrentBackwardArguments& arguments_;
  const SequenceSizes<int64_t>& sizes_;
  const Schedule& schedule_;
  const CellDescriptor& cell_ = arguments_.sequence.cell;
  const std::vector<ColumnRun> gate_runs_ = runs_of(cell_.of_gate, sizes_.state_size);
  const std::vector<ColumnRun> input_runs_ = runs_of(cell_.of_input, sizes_.state_size);
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
