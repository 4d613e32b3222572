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
  const auto begin = [&](Tensor state, const std::optional<Tensor>& initial) {
    if (is_given(initial)) {
      state.copy_(rows_of(*initial));
    } else {
      state.zero_();
    }
  };
  const Tensor h = rows_of(outputs.h_n);
  Tensor c_n = rows_of(outputs.c_n);
  const Tensor cell =
      c_n.scalar_type() == accumulated ? c_n : device.empty({count, state_size}, accumulated);
  begin(h, arguments.h0);
  begin(cell, arguments.c0);
  const Tensor bias = contiguous_or_undefined(arguments.bias);
  const Tensor weights_h = h_columns(arguments.weights).t();
  const Tensor weights_input = input_columns(arguments.weights).t();

  const auto time_of = [&](int64_t k) { return reverse ? steps - 1 - k : k; };
  SequenceStepParams<scalar_t> params{
      .rows = count,
      .state_size = state_size,
      .t = kNoTime,
      .next_t = steps > 0 ? time_of(0) : kNoTime,
      .rows_of_sequence = rows_of_sequence(arguments, first),
      .z_input = nullptr,
      .z_h = nullptr,
      .bias = data_or_null<scalar_t>(bias),
      .h = h.mutable_data_ptr<scalar_t>(),
      .cell = cell.mutable_data_ptr<acc_t>(),
      .output = nullptr,
      .cells = nullptr,
      .gates = nullptr,
  };
  if (is_given(arguments.reset) && steps > 0) {
    check_launch(launch_sequence_step(params, stream));
  }

  const Tensor z_h = device.empty({count, 3 * state_size}, accumulated);
  params.z_h = z_h.const_data_ptr<acc_t>();
  const int64_t bytes_of_step =
      count * (3 * state_size * sizeof(acc_t) + input.size(2) * sizeof(scalar_t));
  const int64_t steps_of_chunk =
      std::clamp<int64_t>(kChunkBytes / bytes_of_step, 1, std::max<int64_t>(steps, 1));
  const Tensor z_input = device.empty({steps_of_chunk * count, 3 * state_size}, accumulated);
  const auto data_at = [&](const Tensor& kept, int64_t t) {
    return static_cast<scalar_t*>(kept_at(kept, t, first));
  };
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
      params.t = time_of(k);
      params.next_t = k + 1 < steps ? time_of(k + 1) : kNoTime;
      params.z_input =
          z_input.const_data_ptr<acc_t>() + (params.t - first_time) * count * 3 * state_size;
      params.output = data_at(outputs.output, params.t);
      params.cells = data_at(outputs.cells, params.t);
      params.gates = data_at(outputs.gates, params.t);
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
