// A sequence of any cell, as the formulas see it: its weights are one matrix, [h | input] as that
// of lltm::sequence, because one product of it is rounded once. The rows are those of what is
// saved, z: zeros where it takes nothing from h or from the input.
#pragma once

#include "../cell/descriptor.h"
#include "../dispatch/optional_tensor.h"
#include "../operators/arguments.h"
#include "../operators/checks.h"
#include "rows.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/SymInt.h>
#include <c10/util/ArrayRef.h>

#include <optional>
#include <utility>
#include <vector>

namespace lltm::formula {

/// From the rows of one side, its gates or inputs, to those of what is saved. `of` is that side's
/// kOfGate or kOfInput.
inline Tensor to_saved(const Tensor& side, c10::ArrayRef<int> of, int saved) {
  if (!side.defined() || of.size() == static_cast<size_t>(saved)) {
    return side;
  }
  const std::vector<Tensor> rows = side.chunk(static_cast<int64_t>(of.size()));
  std::vector<Tensor> all(saved);
  for (size_t i = 0; i < of.size(); ++i) {
    all[of[i]] = rows[i];
  }
  for (Tensor& each : all) {
    each = each.defined() ? each : at::zeros_like(rows[0]);
  }
  return at::cat(all);
}

/// The way back, which is that of gradients: the parts of `saved`, along a dimension, that one side
/// takes.
inline Tensor from_saved(const Tensor& saved, c10::ArrayRef<int> of, int parts, int64_t dim = 0) {
  if (!saved.defined() || of.size() == static_cast<size_t>(parts)) {
    return saved;
  }
  const std::vector<Tensor> all = saved.chunk(parts, dim);
  std::vector<Tensor> side;
  for (const int part : of) {
    side.push_back(all[part]);
  }
  return at::cat(side, dim);
}

/// The weights as one matrix, a new one where the operator takes two.
inline Tensor one_matrix(const LltmSequenceArguments& arguments) {
  return arguments.weights;
}
template <typename Arguments>
Tensor one_matrix(const Arguments& arguments) {
  constexpr const CellDescriptor& kCell = Arguments::kCell;
  return at::cat({to_saved(arguments.weight_hh, kCell.of_gate, kCell.saved),
                  to_saved(arguments.weight_ih, kCell.of_input, kCell.saved)},
                 1);
}

/// The sum of two tensors, either of which may be undefined.
inline Tensor sum_of(const Tensor& a, const Tensor& b) {
  return a.defined() && b.defined() ? a + b : a.defined() ? a : b;
}

/// The biases as one.
inline std::optional<Tensor> one_bias(const GruArguments& arguments) {
  constexpr const CellDescriptor& kCell = GruArguments::kCell;
  return if_defined(sum_of(to_saved(or_undefined(arguments.bias_ih), kCell.of_input, kCell.saved),
                           to_saved(or_undefined(arguments.bias_hh), kCell.of_gate, kCell.saved)));
}
template <typename Arguments>
std::optional<Tensor> one_bias(const Arguments& arguments) {
  return arguments.bias;
}

/// A matrix like the weights of an LLTM as the blocks of h and input, undefined where it is.
inline std::pair<Tensor, Tensor> two_blocks(const Tensor& matrix,
                                            const SequenceSizes<c10::SymInt>& sizes) {
  if (!matrix.defined()) {
    return {};
  }
  const c10::SymInt& h = sizes.state_size;
  return {columns(matrix, 0, h), columns(matrix, h, h + sizes.input_features)};
}

/// Refers to the arguments of a call of a sequence.
struct Problem {
  /// Takes checked arguments and their sizes.
  template <typename Arguments>
  Problem(const Arguments& arguments, bool reverse, SequenceSizes<c10::SymInt> its_sizes)
      : cell(Arguments::kCell),
        sizes(std::move(its_sizes)),
        input(arguments.input),
        weights(one_matrix(arguments)),
        bias(one_bias(arguments)),
        h0(state_or_zeros(arguments.h0).to(input.scalar_type())),
        c0(accumulated(state_or_zeros(arguments.carried()))),
        dtype(input.scalar_type()),
        cell_dtype(final_cell_dtype(arguments)),
        rows(arguments.lengths, arguments.reset, number_of(sizes.steps), reverse) {}

  Tensor h_weights() const { return columns(weights, 0, sizes.state_size); }
  Tensor input_weights() const {
    return columns(weights, sizes.state_size, sizes.state_size + sizes.input_features);
  }
  Tensor state_or_zeros(const std::optional<Tensor>& state) const {
    return is_given(state) ? *state : input.new_zeros_symint({sizes.batch, sizes.state_size});
  }
  Tensor h_and_input(const Tensor& output) const { return rows.h_and_input(output, h0, input); }
  Tensor z(const Tensor& h_and_input) const { return at::linear(h_and_input, weights, bias); }

  const CellDescriptor& cell;
  SequenceSizes<c10::SymInt> sizes;
  const Tensor& input;
  Tensor weights;  // (saved, H + I)
  std::optional<Tensor> bias;
  Tensor h0;  // zeros where absent
  Tensor c0;  // likewise, in the accumulation type
  at::ScalarType dtype;
  at::ScalarType cell_dtype;  // of c_n
  Rows rows;
};

}  // namespace lltm::formula
