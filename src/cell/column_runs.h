// The columns of a cell's two sides within what it saves, as parts of tensors.
#pragma once

#include "../dispatch/optional_tensor.h"
#include "descriptor.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <optional>
#include <vector>

namespace lltm {

/// Columns of one side, the gates or the inputs, and of what is saved.
struct ColumnRun {
  int64_t of_side, of_saved, count;

  at::Tensor side(const at::Tensor& rows) const { return rows.narrow(0, of_side, count); }
  at::Tensor saved(const at::Tensor& columns) const { return columns.narrow(-1, of_saved, count); }
};

/// The fewest runs of a side, whose kOfGate or kOfInput is `of`.
inline std::vector<ColumnRun> runs_of(c10::ArrayRef<int> of, int64_t state_size) {
  std::vector<ColumnRun> runs;
  for (size_t place = 0; place < of.size(); ++place) {
    if (place > 0 && of[place] == of[place - 1] + 1) {
      runs.back().count += state_size;
    } else {
      runs.push_back(
          {static_cast<int64_t>(place) * state_size, of[place] * state_size, state_size});
    }
  }
  return runs;
}

/// What the biases of both sides, which may be absent, add to what is saved.
inline at::Tensor saved_bias(const CellDescriptor& cell,
                             const std::optional<at::Tensor>& of_inputs,
                             const std::optional<at::Tensor>& of_gates,
                             int64_t state_size,
                             const at::TensorOptions& options) {
  const at::Tensor sum = at::zeros({cell.saved * state_size}, options);
  const auto add = [&](const std::optional<at::Tensor>& bias, c10::ArrayRef<int> of) {
    if (is_given(bias)) {
      for (const ColumnRun& run : runs_of(of, state_size)) {
        run.saved(sum).add_(run.side(*bias));
      }
    }
  };
  add(of_inputs, cell.of_input);
  add(of_gates, cell.of_gate);
  return sum;
}

/// The rows of a side's weights where what is saved has them, and zeros for others; the weights
/// themselves if the cell adds its sides.
inline at::Tensor saved_rows(const CellDescriptor& cell,
                             const at::Tensor& weights,
                             c10::ArrayRef<int> of,
                             int64_t state_size) {
  if (cell.adds) {
    return weights;
  }
  const at::Tensor rows = at::zeros({cell.saved * state_size, weights.size(1)}, weights.options());
  for (const ColumnRun& run : runs_of(of, state_size)) {
    rows.narrow(0, run.of_saved, run.count).copy_(run.side(weights));
  }
  return rows;
}

/// The part of such a bias that the numbers of a side take.
inline at::Tensor side_of(const at::Tensor& saved, c10::ArrayRef<int> of, int64_t state_size) {
  std::vector<at::Tensor> parts;
  for (const ColumnRun& run : runs_of(of, state_size)) {
    parts.push_back(run.saved(saved));
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

}  // namespace lltm
