// lltm::sequence on the CPU.
#include "sequence.h"

#include "../checks.h"
#include "../dispatcher_kernel.h"
#include "aten_sequence.h"
#include "own_sequence.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace lltm::cpu {
namespace {

using at::Tensor;

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
  if (batch * state_size > 0) {
    if (has_own_sequence(weights)) {
      own_sequence_out(outputs, arguments, reverse);
    } else {
      aten_sequence_out(outputs, arguments, sizes, reverse);
    }
  }
  return {outputs.output, outputs.h_n, outputs.c_n, outputs.cells, outputs.gates};
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CPU, m) {
  m.impl("sequence", dispatcher_kernel<sequence, lltm::sequence>());
}

}  // namespace lltm::cpu
