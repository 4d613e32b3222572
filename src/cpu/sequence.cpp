// The operators of a sequence on the CPU.
#include "fused/sequence.h"

#include "../dispatch/optional_tensor.h"
#include "../operators/checks.h"
#include "../operators/operators.h"
#include "../operators/outputs.h"
#include "../operators/recurrent.h"
#include "cell.h"
#include "library/sequence.h"
#include "plan.h"
#include "schedule.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <cstddef>
#include <cstring>
#include <optional>

namespace lltm::cpu {
namespace {

using at::Tensor;

void step_out(const CellOutputs& outputs,
              const LltmSequenceArguments& arguments,
              const Tensor& input,
              const Tensor& h0,
              const Tensor& c0,
              const CellSizes<int64_t>& sizes) {
  cell_out(outputs, {input, arguments.weights, arguments.bias, h0, c0}, sizes);
}
template <typename Arguments>
void step_out(const CellOutputs& outputs,
              const Arguments& arguments,
              const Tensor& input,
              const Tensor& h0,
              const Tensor& c0,
              const CellSizes<int64_t>& sizes) {
  fused_step_out(outputs, recurrent(arguments), input, h0, c0, sizes);
}

/// Copies a contiguous tensor to another of its dtype. Those without elements have no memory.
void copy_all(const Tensor& to, const Tensor& from) {
  if (to.numel() > 0) {
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
  }
}

/// Writes `from`, or zeros if it is undefined, to the rows of a batch that are chosen. Both are
/// contiguous and of one dtype.
template <typename Chooses>
void write_rows(const Tensor& to, const Tensor& from, int64_t batch, const Chooses& chooses) {
  if (to.numel() == 0) {
    return;
  }
  const size_t bytes = to.nbytes() / static_cast<size_t>(batch);
  auto* const to_data = static_cast<char*>(to.mutable_data_ptr());
  const auto* const from_data =
      from.defined() ? static_cast<const char*>(from.const_data_ptr()) : nullptr;
  for (int64_t row = 0; row < batch; ++row) {
    const size_t offset = static_cast<size_t>(row) * bytes;
    if (chooses(row) && from_data) {
      std::memcpy(to_data + offset, from_data + offset, bytes);
    } else if (chooses(row)) {
      std::memset(to_data + offset, 0, bytes);
    }
  }
}

template <typename Chooses>
Tensor with_zeros(const Tensor& rows, int64_t batch, const Chooses& chooses) {
  const Tensor copy = rows.clone(at::MemoryFormat::Contiguous);
  write_rows(copy, {}, batch, chooses);
  return copy;
}

/// Runs the only step as lltm::forward does. Rows that are reset start from zeros. So do those of
/// length 0, whose results are then replaced.
template <typename Arguments>
void only_step_out(const SequenceOutputs& outputs,
                   const Arguments& arguments,
                   const SequenceSizes<int64_t>& sizes) {
  const auto& [output, h_n, c_n, cells, gates] = outputs;
  const int64_t batch = sizes.batch;
  const std::optional<Tensor> rounded_h0 =
      is_given(arguments.h0) ? std::optional(arguments.h0->to(output.scalar_type())) : std::nullopt;
  const CallSteps call(arguments, /*reverse=*/false);
  const auto is_idle = [&](int64_t row) { return !call.steps.runs(0, row); };
  const auto starts_from_zeros = [&](int64_t row) {
    return is_idle(row) || call.steps.resets(0, row);
  };
  bool any_idle = false, any_zeros = false;
  for (int64_t row = 0; row < batch; ++row) {
    any_idle |= is_idle(row);
    any_zeros |= starts_from_zeros(row);
  }
  const auto empty = [&](at::IntArrayRef shape) -> Tensor {
    return at::detail::empty_cpu(shape, output.scalar_type());
  };
  const auto start = [&](const std::optional<Tensor>& state) {
    if (is_given(state)) {
      return any_zeros ? with_zeros(*state, batch, starts_from_zeros) : *state;
    }
    Tensor zeros = empty(c_n.sizes());
    write_rows(zeros, {}, batch, [](int64_t) { return true; });
    return zeros;
  };
  const bool keep = outputs.keep(), rounds_cells = c_n.scalar_type() != output.scalar_type();
  const Tensor all_gates = keep ? gates : empty({batch, sizes.state_size * Arguments::kCell.saved});
  step_out({output, c_n, all_gates, keep && rounds_cells ? cells : Tensor()},
           arguments,
           any_idle ? with_zeros(arguments.input, batch, is_idle) : arguments.input,
           start(rounded_h0),
           start(arguments.carried()),
           sizes.of_step());
  if (h_n.defined()) {
    copy_all(h_n, output);
  }
  if (keep && !rounds_cells && cells.defined()) {
    copy_all(cells, c_n);
  }
  if (any_idle) {
    write_rows(c_n, contiguous_or_undefined(arguments.carried()), batch, is_idle);
    write_rows(output, {}, batch, is_idle);
    if (h_n.defined()) {
      write_rows(h_n, contiguous_or_undefined(rounded_h0), batch, is_idle);
    }
    if (keep) {
      write_rows(gates, {}, batch, is_idle);
    }
    if (keep && cells.defined()) {
      write_rows(cells, {}, batch, is_idle);
    }
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
auto sequence(const Arguments& arguments, bool reverse, bool keep) {
  const auto sizes = check<int64_t>(arguments);
  const SequenceOutputs outputs =
      empty_outputs(arguments, sizes, keep, [](at::IntArrayRef shape, at::ScalarType dtype) {
        return Tensor(at::detail::empty_cpu(shape, dtype));
      });
  if (sizes.batch * sizes.state_size > 0) {
    run(outputs, arguments, sizes, reverse);
  }
  return outputs.template results<Arguments>();
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CPU, m) {
  for_each_cell([&]<typename Cell>() {
    using Op = typename Cell::Forward;
    Op::template implement<sequence<typename Op::Arguments>>(m);
  });
}

}  // namespace lltm::cpu
