// The host code of the recurrence in one kernel. Unless the kernel multiplies the input itself,
// z_x, the product with the inputs, is computed before, by one product over many steps. With 16-bit
// tensors z_x is then rounded to 16 bits, as a cell made of PyTorch's operators rounds all of z.
#include "recurrence.h"

#include "../cell/with_cell.h"
#include "../dispatch/optional_tensor.h"
#include "input_product.h"
#include "kernels/grid/grid.h"
#include "kernels/recurrence/recurrence.h"
#include "plan/plan.h"
#include "runtime/last_error.h"
#include "runtime/launch_check.h"
#include "runtime/rows.h"
#include "sequence.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace lltm::cuda {
namespace {

using at::Tensor;

// Of z_x, and of a copy of the input where there is one. The rest of the workspace of inference, of
// 64 MiB, is for the recurrence across the grid (plan/grid.cpp).
constexpr int64_t kInputProductBytes = 40 << 20;

/// The rows of a state from first_row on.
template <typename scalar_t>
Steps<scalar_t> state_of(const std::optional<Tensor>& state, int64_t first_row) {
  Steps<scalar_t> rows = steps_of<scalar_t>(state);
  rows.data += first_row * rows.strides[1];
  return rows;
}

template <typename scalar_t>
AnyCells<scalar_t> any_cells(const std::optional<Tensor>& cells, int64_t first_row = 0) {
  if constexpr (!std::is_same_v<scalar_t, float>) {
    if (is_given(cells) && cells->scalar_type() == at::kFloat) {
      return {.rounded = {}, .exact = state_of<float>(cells, first_row)};
    }
  }
  return {.rounded = state_of<scalar_t>(cells, first_row), .exact = {}};
}

/// Where to write a cell state; undefined if it is not wanted.
template <typename scalar_t>
CellsOut<scalar_t> cells_out(const Tensor& cells) {
  if (!cells.defined()) {
    return {};
  }
  if constexpr (!std::is_same_v<scalar_t, float>) {
    if (cells.scalar_type() != at::kFloat) {
      return {.rounded = cells.mutable_data_ptr<scalar_t>(), .exact = nullptr};
    }
  }
  return {.rounded = nullptr, .exact = cells.mutable_data_ptr<float>()};
}

template <template <typename> typename Problem, typename scalar_t>
cudaError_t launch(const Problem<scalar_t>& problem,
                   CellType cell,
                   const Candidate& candidate,
                   cudaStream_t stream) {
  return with_cell(cell, [&]<typename Cell>() {
    if constexpr (std::is_same_v<scalar_t, float>) {
      return launch_recurrence_fma<Cell>(problem, candidate.recurrence, stream);
    } else {
      return launch_recurrence_mma<Cell>(problem, candidate.recurrence, stream);
    }
  });
}

/// A workspace for the launches across the grid of a call.
Tensor grid_workspace_of(const GridPlan& plan,
                         CellType cell,
                         Arithmetic arithmetic,
                         bool backward,
                         int64_t rows,
                         const Device& device) {
  const GridWorkspaceSizes sizes =
      grid_workspace(plan.tile, plan.teams, gates_of(cell), arithmetic, backward, rows);
  return device.empty({sizes.bytes}, at::kByte);
}

/// Launches a kernel across the grid, with the arithmetic of the problem's elements.
template <typename scalar_t, typename Problem, typename... Rest>
cudaError_t launch_across_grid(const Problem& problem,
                               const GridPlan& plan,
                               CellType cell,
                               Arithmetic arithmetic,
                               const Tensor& workspace,
                               const Rest&... rest) {
  constexpr bool kBackward = requires { problem.d_gates; };
  OfGrid<Problem> of{problem, plan.teams, {}};
  of.workspace = parts_of(
      workspace.mutable_data_ptr(),
      grid_workspace(plan.tile, plan.teams, gates_of(cell), arithmetic, kBackward, problem.rows));
  return with_cell(cell, [&]<typename Cell>() {
    return with_arithmetic(arithmetic, [&]<Arithmetic kArithmetic>() {
      if constexpr (std::is_same_v<TensorElement<kArithmetic>, scalar_t>) {
        return launch_recurrence_grid<Cell, kArithmetic>(of, plan.tile, rest...);
      } else {
        return cudaErrorInvalidValue;
      }
    });
  });
}

/// Whether a launch found no room for all of its blocks at once, which leaves no trace.
bool has_no_room(cudaError_t error) {
  if (error == cudaErrorCooperativeLaunchTooLarge) {
    clear_last_error();
    return true;
  }
  return false;
}

/// What the launches of `rows` rows of a forward have in common, without the input or z_x.
template <typename scalar_t>
RecurrenceForward<scalar_t> all_steps(const SequenceOutputs& outputs,
                                      const RecurrentArguments& arguments,
                                      const StepOrder& order,
                                      int64_t first_row,
                                      int64_t rows,
                                      int group_rows) {
  const bool keeps = outputs.gates.size(0) > 0;
  const int64_t state_size = outputs.h_n.size(1);
  return {
      .steps = order.steps,
      .first_step = 0,
      .step_count = 0,
      .rows = rows,
      .group_rows = group_rows,
      .state_size = state_size,
      .reverse = order.reverse,
      .rows_of_sequence = rows_of_sequence(arguments.lengths, arguments.reset, first_row),
      .weights = recurrent_weights<scalar_t>(arguments.weight_hh),
      .z_x = nullptr,
      .follows_input_product = false,
      .least_shared_bytes = 0,
      .input = {},
      .input_features = 0,
      .input_weights = {},
      .bias = nullptr,
      .bias_stride = 0,
      .h0 = state_of<scalar_t>(arguments.h0, first_row),
      .c0 = any_cells<scalar_t>(arguments.c0, first_row),
      .output = outputs.output.mutable_data_ptr<scalar_t>(),
      .cells = outputs.cells.size(0) > 0 ? outputs.cells.mutable_data_ptr<scalar_t>() : nullptr,
      .gates = keeps ? outputs.gates.mutable_data_ptr<scalar_t>() : nullptr,
      .h_n = outputs.h_n.mutable_data_ptr<scalar_t>() + first_row * state_size,
      .c_n = {},
  };
}

/// Gives a kernel that multiplies the input itself what it needs for that.
template <typename scalar_t>
void multiply_input(RecurrenceForward<scalar_t>& problem, const RecurrentArguments& arguments) {
  problem.input = steps_of<scalar_t>(arguments.input);
  problem.input_features = arguments.input.size(2);
  problem.input_weights = recurrent_weights<scalar_t>(arguments.weight_ih);
  problem.bias = data_or_null<scalar_t>(arguments.bias);
  problem.bias_stride = bias_stride(arguments.bias);
}

/// Whether pairs of neighboring elements of a tensor of three dimensions are aligned, in a dtype of
/// 16 bits.
bool starts_at_pairs(const Tensor& tensor) {
  // Only strides and the address count.
  return Steps<uint16_t>{static_cast<const uint16_t*>(tensor.const_data_ptr()),
                         {tensor.stride(0), tensor.stride(1), tensor.stride(2)}}
      .starts_at_neighbors(2);
}

/// Shared memory of which a multiprocessor has no more than for its share of the blocks. Otherwise
/// blocks that start while other kernels run go to the first multiprocessors that have room.
int bytes_to_spread(int64_t blocks, const DeviceFacts& device) {
  constexpr int kReserved = 1024;  // by the system, of each block
  const int64_t share = ceil_div(blocks, device.multiprocessors);
  const int64_t all = device.shared_bytes_a_block + kReserved;
  return static_cast<int>(std::min<int64_t>(all / (share + 1), kSpreadBytes));
}

/// Whether z_x is written to where the kernel then writes what it saves.
bool lies_in_gates(const SequenceOutputs& outputs, const SequenceSizes<int64_t>& sizes) {
  return outputs.gates.size(0) > 0 && outputs.gates.size(2) == sizes.gates;
}

}  // namespace

bool is_in_pairs(const SequenceSizes<int64_t>& sizes) {
  return sizes.state_size % 2 == 0;
}

bool is_in_pairs(const RecurrentBackwardArguments& arguments, const SequenceSizes<int64_t>& sizes) {
  if (arguments.output.element_size() > 2) {
    return true;
  }
  const auto is_aligned = [](const std::optional<Tensor>& tensor) {
    return !is_given(tensor) || starts_at_pairs(*tensor);
  };
  const auto is_aligned_or_copied = [&](const Tensor& tensor) {
    return !tensor.is_contiguous() || is_aligned(tensor);
  };
  return is_in_pairs(sizes) && is_aligned_or_copied(arguments.gates) &&
         is_aligned_or_copied(arguments.cells) && is_aligned(arguments.grad_output) &&
         is_aligned(arguments.grad_cells);
}

bool input_is_in_pairs(const Tensor& input) {
  return input.element_size() > 2 || starts_at_pairs(input);
}

ChunkOfZx chunk_of_z_x(const SequenceOutputs& outputs,
                       const Tensor& input,
                       const SequenceSizes<int64_t>& sizes) {
  // Products count rows in 32 bits.
  const int64_t most = std::min(sizes.steps, std::numeric_limits<int32_t>::max() / sizes.batch);
  if (lies_in_gates(outputs, sizes)) {
    return {sizes.batch, most};
  }
  const int64_t row_bytes =
      (sizes.gates + copied_input_columns(input)) * static_cast<int64_t>(input.element_size());
  if (const int64_t steps = kInputProductBytes / (sizes.batch * row_bytes); steps > 0) {
    return {sizes.batch, std::min(most, steps)};
  }
  // A step of some rows, beside the cell state that they carry to the next one.
  const int64_t carried_bytes = sizes.state_size * static_cast<int64_t>(sizeof(float));
  const int64_t rows = kInputProductBytes / (row_bytes + carried_bytes);
  return {in_equal_parts(sizes.batch, std::max<int64_t>(rows, 1)),
          std::min({sizes.steps, rows, int64_t{1}})};
}

bool run_recurrence(const SequencePlan& plan,
                    Arithmetic arithmetic,
                    const SequenceOutputs& outputs,
                    const RecurrentArguments& arguments,
                    const SequenceSizes<int64_t>& sizes,
                    const Device& device,
                    bool reverse) {
  const Candidate& candidate = *plan.recurrence;
  const StepOrder order{.steps = sizes.steps, .reverse = reverse};
  const int64_t steps = sizes.steps, batch = sizes.batch;
  const bool x_inside = candidate.recurrence.x_inside, in_gates = lies_in_gates(outputs, sizes);
  const ChunkOfZx chunk =
      x_inside ? ChunkOfZx{batch, steps} : chunk_of_z_x(outputs, arguments.input, sizes);
  const Tensor workspace =
      in_gates || x_inside
          ? Tensor()
          : device.empty({chunk.steps, chunk.rows, sizes.gates}, arguments.input.scalar_type());
  // The cell state between launches, not rounded as h is; undefined if that is c_n.
  const Tensor carried_cell = chunk.steps == steps || outputs.c_n.scalar_type() == at::kFloat
                                  ? Tensor()
                                  : device.empty({chunk.rows, sizes.state_size}, at::kFloat);
  const DeviceFacts& facts = device.facts();
  const int group_rows = plan.grid ? plan.grid->rows_of_team()
                                   : rows_of_group(candidate.recurrence, chunk.rows, facts);
  const Tensor grid_workspace =
      plan.grid
          ? grid_workspace_of(*plan.grid, arguments.cell.type, arithmetic, false, batch, device)
          : Tensor();
  const Biases biases(arguments, device);
  const RecurrentArguments of_inputs = arguments.with_bias(biases.of_inputs);
  bool ran = true;
  // Runs all steps of some rows.
  const auto run_rows = [&]<typename scalar_t>(int64_t first_row, int64_t rows, scalar_t) {
    const auto part_of = [&](const Tensor& tensor, int64_t dim) {
      return rows == batch ? tensor : tensor.narrow(dim, first_row, rows);
    };
    const Tensor input = part_of(arguments.input, 1), h_n = part_of(outputs.h_n, 0),
                 c_n = part_of(outputs.c_n, 0),
                 cell = carried_cell.defined() ? carried_cell.narrow(0, 0, rows) : c_n;
    RecurrenceForward<scalar_t> problem =
        all_steps<scalar_t>(outputs, arguments, order, first_row, rows, group_rows);
    if (x_inside) {
      multiply_input(problem, arguments);
    }
    if (biases.of_saved) {
      problem.bias = biases.of_saved->const_data_ptr<scalar_t>();
      problem.bias_stride = 1;
    }
    for (int64_t first = 0; first < steps; first += chunk.steps) {
      const int64_t count = std::min(chunk.steps, steps - first);
      const int64_t first_time = order.first_time(first, count);
      if (!x_inside) {
        const Tensor z_x = in_gates ? outputs.gates.narrow(0, first_time, count)
                                    : workspace.narrow(0, 0, count).narrow(1, 0, rows);
        problem.follows_input_product = compute_input_product(
            z_x, input.narrow(0, first_time, count), of_inputs, arithmetic, device);
        problem.least_shared_bytes =
            problem.follows_input_product ? bytes_to_spread(ceil_div(rows, group_rows), facts) : 0;
        problem.z_x = z_x.const_data_ptr<scalar_t>();
      }
      if (first > 0) {
        problem.h0 = steps_of<scalar_t>(h_n);
        problem.c0 = any_cells<scalar_t>(cell);
      }
      problem.first_step = first;
      problem.step_count = count;
      // The time of a step of some rows is counted in steps of all of them.
      const int64_t from_rows = first_time * (batch - rows) + first_row;
      problem.output = outputs.output.mutable_data_ptr<scalar_t>() + from_rows * sizes.state_size;
      if (problem.gates != nullptr) {
        problem.gates =
            outputs.gates.mutable_data_ptr<scalar_t>() + from_rows * outputs.gates.size(2);
      }
      problem.c_n = cells_out<scalar_t>(first + count == steps ? c_n : cell);
      if (!plan.grid) {
        check_launch(launch(problem, arguments.cell.type, candidate, device.stream()));
        continue;
      }
      const cudaError_t error = launch_across_grid<scalar_t>(problem,
                                                             *plan.grid,
                                                             arguments.cell.type,
                                                             arithmetic,
                                                             grid_workspace,
                                                             /*has_weights=*/first > 0,
                                                             device.stream());
      if (has_no_room(error)) {  // then the first launch has none
        ran = false;
        return;
      }
      check_launch(error);
    }
  };
  with_scalar(arguments.input.scalar_type(), [&]<typename scalar_t>() {
    for (int64_t first = 0; first < batch; first += chunk.rows) {
      run_rows(first, std::min(chunk.rows, batch - first), scalar_t{});
    }
  });
  return ran;
}

std::optional<Tensor> run_recurrence_backward(const SequencePlan& plan,
                                              Arithmetic arithmetic,
                                              const Tensor& d_gates,
                                              const RecurrentGradients& gradients,
                                              const RecurrentBackwardArguments& arguments,
                                              const Device& device,
                                              bool reverse) {
  const Tensor gates = arguments.gates.contiguous(), cells = arguments.cells.contiguous();
  const int64_t batch = cells.size(1);
  const int group_rows = plan.grid
                             ? plan.grid->rows_of_team()
                             : rows_of_group(plan.recurrence->recurrence, batch, device.facts());
  const Tensor bias_parts =
      gradients.bias.defined() || gradients.bias_hh.defined()
          ? device.empty({ceil_div(batch, group_rows), d_gates.size(1)}, at::kFloat)
          : Tensor();
  bool ran = true;
  with_scalar(d_gates.scalar_type(), [&]<typename scalar_t>() {
    const RecurrenceBackward<scalar_t> problem{
        .steps = cells.size(0),
        .rows = batch,
        .group_rows = group_rows,
        .state_size = cells.size(2),
        .reverse = reverse,
        .rows_of_sequence = rows_of_sequence(arguments.sequence),
        .weights = recurrent_weights<scalar_t>(arguments.sequence.weight_hh),
        .gates = gates.const_data_ptr<scalar_t>(),
        .cells = cells.const_data_ptr<scalar_t>(),
        .grad_output = steps_of<scalar_t>(arguments.grad_output),
        .grad_cells = steps_of<scalar_t>(arguments.grad_cells),
        .grad_h_n = steps_of<scalar_t>(arguments.grad_h_n),
        .grad_c_n = any_cells<scalar_t>(arguments.grad_c_n),
        .c0 = any_cells<scalar_t>(arguments.sequence.c0),
        .d_gates = d_gates.mutable_data_ptr<scalar_t>(),
        .d_gates_stride = d_gates.stride(0),
        .d_bias_parts = mutable_data_or_null<float>(bias_parts),
        .d_h0 = mutable_data_or_null<scalar_t>(gradients.h0),
        .d_c0 = cells_out<scalar_t>(gradients.c0),
    };
    const CellType cell = arguments.sequence.cell.type;
    if (!plan.grid) {
      check_launch(launch(problem, cell, *plan.recurrence, device.stream()));
      return;
    }
    const cudaError_t error = launch_across_grid<scalar_t>(
        problem,
        *plan.grid,
        cell,
        arithmetic,
        grid_workspace_of(*plan.grid, cell, arithmetic, true, batch, device),
        device.stream());
    ran = !has_no_room(error);
    if (ran) {
      check_launch(error);
    }
  });
  return ran ? std::optional(bias_parts) : std::nullopt;
}

}  // namespace lltm::cuda
