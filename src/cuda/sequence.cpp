// lltm::sequence on CUDA: one kernel per step (sequence_forward_steps.cpp) or, in this file, the
// library.
//
// The product with the inputs, z_x, is computed in chunks of time, by one product each. Each step
// is then a product with h and a pointwise kernel. Both products are kept in the accumulation type,
// float32 for 16-bit tensors, so z is rounded only where it is written to gates. h and the carried
// cell state are in buffers that the steps update in place. A row that has ended leaves its state
// alone, so the buffers hold the final state at the end. The host knows only sizes, so a call can
// be captured in a graph.
#include "sequence.h"

#include "../checks.h"
#include "../dispatcher_kernel.h"
#include "../optional_tensor.h"
#include "runtime/device.h"
#include "runtime/launch_check.h"

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace lltm::cuda {
namespace {

using at::Tensor;

/// The workspace for z_x of a chunk of time, and for a copy of the chunk's input where necessary.
constexpr int64_t kChunkBytes = 16 << 20;
/// The workspace for one step. If there are more rows, they run one block after the other. Both
/// together leave half of 64 MiB to the workspace that cuBLAS allocates per stream by itself.
constexpr int64_t kStepBytes = 12 << 20;

/// Runs the rows [first, first + count) of the batch, for all steps.
template <typename scalar_t>
void run_rows(const SequenceOutputs& outputs,
              const SequenceArguments& arguments,
              const Device& device,
              int64_t first,
              int64_t count,
              bool reverse) {
  using acc_t = accumulate_t<scalar_t>;
  const Tensor& input = arguments.input;
  const int64_t steps = input.size(0), state_size = outputs.h_n.size(1);
  const auto accumulated = c10::CppTypeToScalarType<acc_t>::value;
  const cudaStream_t stream = device.stream();
  const auto rows_of = [&](const Tensor& tensor) { return tensor.narrow(0, first, count); };
  const Tensor h = rows_of(outputs.h_n);
  Tensor c_n = rows_of(outputs.c_n);
  const Tensor cell =
      c_n.scalar_type() == accumulated ? c_n : device.empty({count, state_size}, accumulated);
  scalar_t* const h_data = h.mutable_data_ptr<scalar_t>();
  acc_t* const cell_data = cell.mutable_data_ptr<acc_t>();
  auto start = start_of_sequence<scalar_t>(arguments, state_size, first, count, reverse);
  start.h[0] = start.h_n = h_data;
  start.cell = cell_data;
  check_launch(launch_sequence_start(start, stream));

  const Tensor bias = contiguous_or_undefined(arguments.bias);
  const Tensor weights_h = h_columns(arguments.weights).t();
  const Tensor weights_input = input_columns(arguments.weights).t();
  SequenceStepParams<scalar_t> params{};
  StepOfRowsProblem& step = params.step;
  step.batch = count;
  step.state_size = state_size;
  step.bias = data_or_null<scalar_t>(bias);
  step.old_cell = {cell_data, state_size};
  step.next_cell = cell_data;
  step.next_h = {h_data, state_size};
  step.h_n = h_data;
  step.rows = start.rows_of_sequence;

  const Tensor z_h = device.empty({count, 3 * state_size}, accumulated);
  params.z_h = z_h.const_data_ptr<acc_t>();
  const int64_t bytes_of_step =
      count * (3 * state_size * sizeof(acc_t) + input.size(2) * sizeof(scalar_t));
  const int64_t steps_of_chunk =
      std::clamp<int64_t>(kChunkBytes / bytes_of_step, 1, std::max<int64_t>(steps, 1));
  const Tensor z_input = device.empty({steps_of_chunk * count, 3 * state_size}, accumulated);
  const auto time_of = [&](int64_t k) { return reverse ? steps - 1 - k : k; };
  for (int64_t first_step = 0; first_step < steps; first_step += steps_of_chunk) {
    const int64_t last_step = std::min(first_step + steps_of_chunk, steps);
    const int64_t length = last_step - first_step;
    const int64_t first_time = reverse ? steps - last_step : first_step;
    const Tensor x = input.narrow(0, first_time, length)
                         .narrow(1, first, count)
                         .reshape({length * count, input.size(2)});
    product_out(z_input.narrow(0, 0, length * count), x, weights_input);
    for (int64_t k = first_step; k < last_step; ++k) {
      product_out(z_h, h, weights_h);
      step.t = time_of(k);
      step.next_t = k + 1 < steps ? time_of(k + 1) : kNever;
      params.z_input =
          z_input.const_data_ptr<acc_t>() + (step.t - first_time) * count * 3 * state_size;
      step.new_h = kept_at(outputs.output, step.t, first);
      step.new_cell = kept_at(outputs.cells, step.t, first);
      step.gates = kept_at(outputs.gates, step.t, first);
      check_launch(launch_sequence_step(params, stream));
    }
  }
  if (!cell.is_same(c_n)) {
    c_n.copy_(cell);
  }
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> sequence(const SequenceArguments& arguments,
                                                            bool reverse,
                                                            bool keep) {
  const auto sizes = check<int64_t>(arguments);
  const int64_t batch = sizes.batch, state_size = sizes.state_size;
  const Device device(arguments.input);
  const SequenceOutputs outputs =
      empty_outputs(arguments, sizes, keep, [&](at::IntArrayRef shape, at::ScalarType dtype) {
        return device.empty(shape, dtype);
      });
  if (batch * state_size > 0 && !run_sequence_by_steps(outputs, arguments, device, reverse)) {
    const auto dtype = arguments.input.scalar_type();
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "lltm::sequence", [&] {
      const int64_t bytes_of_row = 8 * state_size * sizeof(accumulate_t<scalar_t>);
      const int64_t rows = std::clamp<int64_t>(kStepBytes / bytes_of_row, 1, batch);
      for (int64_t first = 0; first < batch; first += rows) {
        run_rows<scalar_t>(
            outputs, arguments, device, first, std::min(rows, batch - first), reverse);
      }
    });
  }
  return outputs.results();
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CUDA, m) {
  m.impl("sequence", dispatcher_kernel<sequence, lltm::sequence>());
}

}  // namespace lltm::cuda
