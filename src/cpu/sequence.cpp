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

/// Runs the only step as lltm::forward does, by cell_out(outputs, h0, c0, sizes).
template <typename Arguments, typename CellOut>
void only_step_out(const SequenceOutputs& outputs,
                   const Arguments& arguments,
                   const SequenceSizes<int64_t>& sizes,
                   const CellOut& cell_out) {
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
  cell_out(CellOutputs{outputs.output, c_n, gates},
           given_or_zeros(arguments.h0),
           given_or_zeros(arguments.c0),
           sizes.of_step());
  std::memcpy(h_n.mutable_data_ptr(), outputs.output.const_data_ptr(), h_n.nbytes());
  if (keep) {
    std::memcpy(outputs.cells.mutable_data_ptr(), c_n.const_data_ptr(), c_n.nbytes());
  }
}

void all_steps_out(const SequenceOutputs& outputs,
                   const RecurrentArguments& arguments,
                   const SequenceSizes<int64_t>& sizes,
                   bool reverse) {
  plan_sequence(arguments, sizes) == Path::kFused
      ? fused_sequence_out(outputs, arguments, sizes, reverse)
      : library_sequence_out(outputs, arguments, sizes, reverse);
}

void run(const SequenceOutputs& outputs,
         const SequenceArguments& arguments,
         const SequenceSizes<int64_t>& sizes,
         bool reverse) {
  if (!runs_as_cell(arguments, sizes)) {
    all_steps_out(outputs, recurrent(arguments), sizes, reverse);
    return;
  }
  only_step_out(outputs,
                arguments,
                sizes,
                [&](const CellOutputs& outputs,
                    const Tensor& h0,
                    const Tensor& c0,
                    const CellSizes<int64_t>& sizes) {
                  cell_out(
                      outputs, {arguments.input, arguments.weights, arguments.bias, h0, c0}, sizes);
                });
}

void run(const SequenceOutputs& outputs,
         const LstmArguments& arguments,
         const SequenceSizes<int64_t>& sizes,
         bool reverse) {
  if (!runs_as_cell(arguments, sizes) ||
      plan_cell(arguments.input.scalar_type(), Pass::kForward, sizes.of_step()) != Path::kFused) {
    all_steps_out(outputs, recurrent(arguments), sizes, reverse);
    return;
  }
  only_step_out(outputs,
                arguments,
                sizes,
                [&](const CellOutputs& outputs,
                    const Tensor& h0,
                    const Tensor& c0,
                    const CellSizes<int64_t>& sizes) {
                  fused_lstm_cell_out(outputs, arguments, h0, c0, sizes);
                });
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
