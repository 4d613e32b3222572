// lltm::sequence and lltm::lstm on the CPU.
#include "fused/sequence.h"

#include "../dispatch/optional_tensor.h"
#include "../operators/checks.h"
#include "../operators/operators.h"
#include "../operators/outputs.h"
#include "../operators/recurrent.h"
#include "cell.h"
#include "library/sequence.h"
#include "plan.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <cstring>

namespace lltm::cpu {
namespace {

using at::Tensor;

void step_out(const CellOutputs& outputs,
              const SequenceArguments& arguments,
              const Tensor& h0,
              const Tensor& c0,
              const CellSizes<int64_t>& sizes) {
  cell_out(outputs, {arguments.input, arguments.weights, arguments.bias, h0, c0}, sizes);
}
void step_out(const CellOutputs& outputs,
              const LstmArguments& arguments,
              const Tensor& h0,
              const Tensor& c0,
              const CellSizes<int64_t>& sizes) {
  fused_lstm_cell_out(outputs, arguments, h0, c0, sizes);
}

/// Runs the only step as lltm::forward does.
template <typename Arguments>
void only_step_out(const SequenceOutputs& outputs,
                   const Arguments& arguments,
                   const SequenceSizes<int64_t>& sizes) {
  const Tensor &h_n = outputs.h_n, &c_n = outputs.c_n;
  const auto empty = [&](at::IntArrayRef shape) -> Tensor {
    return at::detail::empty_cpu(shape, h_n.scalar_type());
  };
  const auto given_or_zeros = [&](const std::optional<Tensor>& state) {
    if (is_given(state)) {
      return *state;
    }
    Tensor zeros = empty(h_n.sizes());
    std::memset(zeros.mutable_data_ptr(), 0, zeros.nbytes());
    return zeros;
  };
  const bool keep = outputs.gates.size(0) > 0;
  const Tensor gates = keep ? outputs.gates : empty({sizes.batch, sizes.gates});
  step_out({outputs.output, c_n, gates},
           arguments,
           given_or_zeros(arguments.h0),
           given_or_zeros(arguments.c0),
           sizes.of_step());
  std::memcpy(h_n.mutable_data_ptr(), outputs.output.const_data_ptr(), h_n.nbytes());
  if (keep) {
    std::memcpy(outputs.cells.mutable_data_ptr(), c_n.const_data_ptr(), c_n.nbytes());
  }
}

template <typename Arguments>
void run(const SequenceOutputs& outputs,
         const Arguments& arguments,
         const SequenceSizes<int64_t>& sizes,
         bool reverse) {
  if (runs_as_cell(arguments, sizes)) {
    only_step_out(outputs, arguments, sizes);
    return;
  }
  const RecurrentArguments sequence = recurrent(arguments);
  plan_sequence(sequence, sizes) == Path::kFused
      ? fused_sequence_out(outputs, sequence, sizes, reverse)
      : library_sequence_out(outputs, sequence, sizes, reverse);
}

template <typename Arguments>
SequenceResults sequence(const Arguments& arguments, bool reverse, bool keep) {
  const auto sizes = check<int64_t>(arguments);
  const SequenceOutputs outputs =
      empty_outputs(arguments, sizes, keep, [](at::IntArrayRef shape, at::ScalarType dtype) {
        return Tensor(at::detail::empty_cpu(shape, dtype));
      });
  if (sizes.batch * sizes.state_size > 0) {
    run(outputs, arguments, sizes, reverse);
  }
  return outputs.results();
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CPU, m) {
  m.impl("sequence", op::Sequence::kernel<sequence<SequenceArguments>>());
  m.impl("lstm", op::Lstm::kernel<sequence<LstmArguments>>());
}

}  // namespace lltm::cpu
