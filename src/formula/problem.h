// A sequence of either cell, as the formulas see it: its weights are one matrix, [h | input] as
// that of lltm::sequence, because one product of it is rounded once.
#pragma once

#include "../cell/cell_type.h"
#include "../dispatch/optional_tensor.h"
#include "../operators/arguments.h"
#include "../operators/checks.h"
#include "rows.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <c10/core/SymInt.h>

#include <optional>
#include <utility>

namespace lltm::formula {

inline CellType cell_of(const SequenceArguments&) {
  return CellType::kLltm;
}
inline CellType cell_of(const LstmArguments&) {
  return CellType::kLstm;
}

/// The weights as one matrix, for an LSTM a new one.
inline Tensor one_matrix(const SequenceArguments& arguments) {
  return arguments.weights;
}
inline Tensor one_matrix(const LstmArguments& arguments) {
  return at::cat({arguments.weight_hh, arguments.weight_ih}, 1);
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

/// Refers to the arguments of a call of lltm::sequence or lltm::lstm.
struct Problem {
  /// Takes checked arguments and their sizes.
  template <typename Arguments>
  Problem(const Arguments& arguments, bool reverse, SequenceSizes<c10::SymInt> its_sizes)
      : cell(cell_of(arguments)),
        sizes(std::move(its_sizes)),
        input(arguments.input),
        weights(one_matrix(arguments)),
        bias(arguments.bias),
        h0(state_or_zeros(arguments.h0)),
        c0(accumulated(state_or_zeros(arguments.c0))),
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

  CellType cell;
  SequenceSizes<c10::SymInt> sizes;
  const Tensor& input;
  Tensor weights;  // (gates, H + I)
  const std::optional<Tensor>& bias;
  Tensor h0;  // zeros where absent
  Tensor c0;  // likewise, in the accumulation type
  at::ScalarType dtype;
  at::ScalarType cell_dtype;  // of c_n
  Rows rows;
};

}  // namespace lltm::formula
