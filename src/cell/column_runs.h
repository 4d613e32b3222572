// The columns of a cell's two sides within what it saves, as parts of tensors.
#pragma once

#include "../dispatch/optional_tensor.h"
#include "descriptor.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
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

/// What the biases of both sides, which may be absent, add to what is saved, in a dtype, which sums
/// are rounded to.
inline at::Tensor saved_bias(const CellDescriptor& cell,
                             const std::optional<at::Tensor>& of_inputs,
                             const std::optional<at::Tensor>& of_gates,
                             int64_t state_size,
                             const at::TensorOptions& options) {
  const auto place_in = [](c10::ArrayRef<int> of, int saved) {
    const auto* const found = std::find(of.begin(), of.end(), saved);
    return found == of.end() ? -1 : static_cast<int>(found - of.begin());
  };
  std::vector<at::Tensor> parts;  // as few as possible
  for (int first = 0, count = 1; first < cell.saved; first += count, count = 1) {
    const auto goes_on = [&](c10::ArrayRef<int> of) {
      const int place = place_in(of, first);
      return place_in(of, first + count) == (place < 0 ? -1 : place + count);
    };
    while (first + count < cell.saved && goes_on(cell.of_input) && goes_on(cell.of_gate)) {
      ++count;
    }
    const auto part_of = [&](const std::optional<at::Tensor>& bias, c10::ArrayRef<int> of) {
      const int place = place_in(of, first);
      return is_given(bias) && place >= 0
                 ? bias->narrow(0, place * state_size, count * state_size).to(options)
                 : at::Tensor();
    };
    const at::Tensor x = part_of(of_inputs, cell.of_input), h = part_of(of_gates, cell.of_gate);
    parts.push_back(x.defined() && h.defined() ? x.add(h)
                    : x.defined()              ? x
                    : h.defined()              ? h
                                               : at::zeros({count * state_size}, options));
  }
  return at::cat(parts);
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
