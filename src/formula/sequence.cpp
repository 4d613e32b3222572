#include "sequence.h"

#include "../optional_tensor.h"
#include "../without_autocast.h"
#include "cell.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <vector>

namespace lltm::formula {
namespace {

using at::Tensor;

/// Which rows run at which step, and which of them are reset there.
class Rows {
 public:
  Rows(const SequenceArguments& arguments, int64_t steps, bool reverse)
      : lengths_(or_undefined(arguments.lengths)),
        reset_(or_undefined(arguments.reset)),
        steps_(steps),
        reverse_(reverse) {}

  /// The time of the k-th step that is run. Its own inverse.
  int64_t time_of(int64_t k) const { return reverse_ ? steps_ - 1 - k : k; }

  /// `yes` in the rows that are longer than t, else `no`.
  Tensor where_running(int64_t t, const Tensor& yes, const Tensor& no) const {
    return lengths_.defined() ? at::where(running(t), yes, no) : yes;
  }
  Tensor zero_unless_running(int64_t t, const Tensor& tensor) const {
    return lengths_.defined() ? at::where(running(t), tensor, 0) : tensor;
  }
  /// The same for the steps (T, N, columns) of all times.
  Tensor zero_unless_running(const Tensor& of_steps) const {
    if (!lengths_.defined()) {
      return of_steps;
    }
    return at::where(lengths_.gt(times()).unsqueeze(2), of_steps, 0);
  }
  Tensor zero_where_reset(int64_t t, const Tensor& tensor) const {
    return reset_.defined() ? at::where(reset_.select(0, t).unsqueeze(1).logical_not(), tensor, 0)
                            : tensor;
  }

  /// [h | input] of every step (T, N, H + I): the h that the step started from, and its input.
  Tensor h_and_input(const Tensor& output, const Tensor& h0, const Tensor& input) const {
    const Tensor first = h0.unsqueeze(0);
    // The output of the step that was run before, or h0 in each row's first step.
    Tensor old_h = reverse_ ? at::cat({output, first}).narrow(0, 1, steps_)
                            : at::cat({first, output}).narrow(0, 0, steps_);
    if (reverse_ && lengths_.defined()) {
      old_h = at::where(lengths_.eq(times().add(1)).unsqueeze(2), h0, old_h);
    }
    if (reset_.defined()) {
      old_h = at::where(reset_.unsqueeze(2).logical_not(), old_h, 0);
    }
    return zero_unless_running(at::cat({old_h, input}, 2));
  }

 private:
  Tensor running(int64_t t) const { return lengths_.gt(t).unsqueeze(1); }
  Tensor times() const { return at::arange(steps_, lengths_.options()).unsqueeze(1); }

  Tensor lengths_;
  Tensor reset_;
  int64_t steps_;
  bool reverse_;
};

int64_t number_of(const c10::SymInt& steps) {
  return steps.guard_int(__FILE__, __LINE__);
}

/// Stacks the steps in the order of time.
Tensor stacked(std::vector<Tensor> in_order_of_execution,
               bool reverse,
               const Tensor& like,
               at::SymIntArrayRef size_of_a_step) {
  if (in_order_of_execution.empty()) {
    c10::SymDimVector sizes{0};
    sizes.append(size_of_a_step.begin(), size_of_a_step.end());
    return like.new_empty_symint(sizes);
  }
  if (reverse) {
    std::reverse(in_order_of_execution.begin(), in_order_of_execution.end());
  }
  return at::stack(in_order_of_execution);
}

Tensor state_or_zeros(const std::optional<Tensor>& state,
                      const Tensor& input,
                      const SequenceSizes<c10::SymInt>& sizes) {
  return is_given(state) ? *state : input.new_zeros_symint({sizes.batch, sizes.state_size});
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> sequence(const SequenceArguments& arguments,
                                                            bool reverse,
                                                            bool keep) {
  const auto sizes = check<c10::SymInt>(arguments);
  const WithoutAutocast without_autocast;
  const auto& [input, weights, bias, h0, c0, lengths, reset] = arguments;
  const int64_t steps = number_of(sizes.steps);
  const Rows rows(arguments, steps, reverse);
  const auto dtype = input.scalar_type();

  Tensor h = state_or_zeros(h0, input, sizes);
  Tensor cell = accumulated(state_or_zeros(c0, input, sizes));
  std::vector<Tensor> output, cells, gates;
  for (int64_t k = 0; k < steps; ++k) {
    const int64_t t = rows.time_of(k);
    const Tensor old_h = rows.zero_where_reset(t, h);
    const Tensor old_cell = rows.zero_unless_running(t, rows.zero_where_reset(t, cell));
    const Tensor h_and_input = rows.zero_unless_running(t, at::cat({old_h, input.select(0, t)}, 1));
    const Tensor z = at::linear(h_and_input, weights, bias);
    const State state = step(z, old_cell);
    const Tensor new_h = state.h.to(dtype);
    output.push_back(rows.zero_unless_running(t, new_h));
    if (keep) {
      cells.push_back(rows.zero_unless_running(t, state.cell).to(dtype));
      gates.push_back(rows.zero_unless_running(t, z.detach()));
    }
    h = rows.where_running(t, new_h, h);
    cell = rows.where_running(t, state.cell, cell);
  }
  if (steps == 0) {
    // The final state equals the initial one, but must not share storage with it.
    h = h.clone();
    cell = cell.clone();
  }
  const auto stack = [&](const std::vector<Tensor>& of_steps, const c10::SymInt& columns) {
    return stacked(of_steps, reverse, input, {sizes.batch, columns});
  };
  return {stack(output, sizes.state_size),
          h,
          cell.to(final_cell_dtype(arguments)),
          stack(cells, sizes.state_size),
          stack(gates, sizes.state_size * 3)};
}

GateGradients sequence_gate_gradients(const SequenceBackwardArguments& arguments,
                                      bool reverse,
                                      std::array<bool, 2> state_mask) {
  const auto sizes = check<c10::SymInt>(arguments);
  const WithoutAutocast without_autocast;
  const Tensor& input = arguments.input;
  const Tensor& weights = arguments.weights;
  const int64_t steps = number_of(sizes.steps);
  const Rows rows(arguments.sequence(), steps, reverse);
  const auto dtype = input.scalar_type();
  const Tensor h_columns = columns(weights, 0, sizes.state_size);
  const Tensor h0 = state_or_zeros(arguments.h0, input, sizes);
  const Tensor z =
      at::linear(rows.h_and_input(arguments.output, h0, input), weights, arguments.bias);

  // The gradient of a step's result: that from the following step plus the one the caller passed.
  const auto total = [&](int64_t t, const Tensor& following, const std::optional<Tensor>& passed) {
    return rows.zero_unless_running(
        t, is_given(passed) ? following + accumulated(passed->select(0, t)) : following);
  };

  // The gradients of the state that is passed between two steps.
  Tensor dh = accumulated(state_or_zeros(arguments.grad_h_n, input, sizes));
  Tensor d_cell = accumulated(state_or_zeros(arguments.grad_c_n, input, sizes));
  std::vector<Tensor> dz_of_steps;
  for (int64_t k = steps - 1; k >= 0; --k) {
    const int64_t t = rows.time_of(k);
    const Tensor new_cell = rows.zero_unless_running(t, accumulated(arguments.cells.select(0, t)));
    const StepGradients gradients = step_backward(z.select(0, t),
                                                  new_cell,
                                                  total(t, dh, arguments.grad_output),
                                                  total(t, d_cell, arguments.grad_cells));
    const Tensor dz = rows.zero_unless_running(t, gradients.gates).to(dtype);
    if (k > 0 || state_mask[0]) {
      const Tensor d_old_h = accumulated(dz.matmul(h_columns));
      dh = rows.where_running(t, rows.zero_where_reset(t, d_old_h), dh);
    }
    d_cell = rows.where_running(t, rows.zero_where_reset(t, gradients.old_cell), d_cell);
    dz_of_steps.push_back(dz);
  }
  if (steps == 0) {
    dh = dh.clone();
    d_cell = d_cell.clone();
  }
  // The steps were visited in the reverse order of their execution.
  return {
      stacked(dz_of_steps, !reverse, input, {sizes.batch, sizes.state_size * 3}),
      if_wanted(state_mask[0], [&] { return dh.to(dtype); }),
      if_wanted(state_mask[1], [&] { return d_cell.to(final_cell_dtype(arguments.sequence())); })};
}

OptionalGradients finish_sequence_gradients(const GateGradients& gate_gradients,
                                            const SequenceBackwardArguments& arguments,
                                            bool reverse,
                                            std::array<bool, 5> output_mask) {
  const auto sizes = check<c10::SymInt>(arguments);
  const WithoutAutocast without_autocast;
  const Tensor& input = arguments.input;
  const Tensor& weights = arguments.weights;
  const Rows rows(arguments.sequence(), number_of(sizes.steps), reverse);
  const auto& [dz, d_h0, d_c0] = gate_gradients;
  return {
      if_wanted(output_mask[kInput],
                [&, &dz = dz] {
                  const c10::SymInt width = sizes.state_size + sizes.input_features;
                  const Tensor input_columns = columns(weights, sizes.state_size, width);
                  return rows.zero_unless_running(dz.matmul(input_columns));
                }),
      if_wanted(output_mask[kWeights],
                [&, &dz = dz] {
                  const Tensor h0 = state_or_zeros(arguments.h0, input, sizes);
                  const Tensor h_and_input = rows.h_and_input(arguments.output, h0, input);
                  // flatten() has no rule in the legacy vmap.
                  const auto matrix = [&](const Tensor& of_steps, const c10::SymInt& columns) {
                    return of_steps.reshape_symint({sizes.steps * sizes.batch, columns});
                  };
                  return matrix(dz, sizes.state_size * 3)
                      .t()
                      .matmul(matrix(h_and_input, sizes.state_size + sizes.input_features));
                }),
      if_wanted(output_mask[kBias], [&dz = dz] { return dz.sum(at::IntArrayRef{0, 1}); }),
      d_h0,
      d_c0,
  };
}

OptionalGradients sequence_backward(const SequenceBackwardArguments& arguments,
                                    bool reverse,
                                    std::array<bool, 5> output_mask) {
  return finish_sequence_gradients(
      sequence_gate_gradients(arguments, reverse, {output_mask[kH0], output_mask[kC0]}),
      arguments,
      reverse,
      output_mask);
}

}  // namespace lltm::formula
