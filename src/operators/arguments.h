// The arguments of the operators, and the sizes that they have.
#pragma once

#include "../dispatch/optional_tensor.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>

namespace lltm {

/// The sizes of a call with valid arguments. Size is int64_t in a kernel, and c10::SymInt where
/// sizes may be symbolic. `gates` is the cell's number of gates times state_size.
template <typename Size>
struct CellSizes {
  Size batch;
  Size input_features;
  Size state_size;
  Size gates;
};

template <typename Size>
struct SequenceSizes {
  Size steps;
  Size batch;
  Size input_features;
  Size state_size;
  Size gates;

  CellSizes<Size> of_step() const { return {batch, input_features, state_size, gates}; }
};

// The tensors of a call of kOperator. tensors() returns them in the order of the schema. kHasSteps
// is true for the operators of a sequence.

struct ForwardArguments {
  static constexpr const char* kOperator = "lltm::forward";
  static constexpr bool kHasSteps = false;

  const at::Tensor& input;
  const at::Tensor& weights;
  const std::optional<at::Tensor>& bias;
  const at::Tensor& old_h;
  const at::Tensor& old_cell;

  auto tensors() const { return std::tie(input, weights, bias, old_h, old_cell); }
};

struct BackwardArguments {
  static constexpr const char* kOperator = "lltm::backward";
  static constexpr bool kHasSteps = false;

  const std::optional<at::Tensor>& grad_h;
  const std::optional<at::Tensor>& grad_cell;
  const at::Tensor& new_cell;
  const at::Tensor& gates;
  const at::Tensor& input;
  const at::Tensor& weights;
  const std::optional<at::Tensor>& bias;
  const at::Tensor& old_h;

  auto tensors() const {
    return std::tie(grad_h, grad_cell, new_cell, gates, input, weights, bias, old_h);
  }
};

struct SequenceArguments {
  static constexpr const char* kOperator = "lltm::sequence";
  static constexpr const char* kBackwardOperator = "lltm::sequence_backward";
  static constexpr bool kHasSteps = true;

  const at::Tensor& input;
  const at::Tensor& weights;
  const std::optional<at::Tensor>& bias;
  const std::optional<at::Tensor>& h0;
  const std::optional<at::Tensor>& c0;
  const std::optional<at::Tensor>& lengths;
  const std::optional<at::Tensor>& reset;

  auto tensors() const { return std::tie(input, weights, bias, h0, c0, lengths, reset); }
  auto weight_tensors() const { return std::tie(weights); }
};

struct LstmArguments {
  static constexpr const char* kOperator = "lltm::lstm";
  static constexpr const char* kBackwardOperator = "lltm::lstm_backward";
  static constexpr bool kHasSteps = true;

  const at::Tensor& input;
  const at::Tensor& weight_ih;
  const at::Tensor& weight_hh;
  const std::optional<at::Tensor>& bias;
  const std::optional<at::Tensor>& h0;
  const std::optional<at::Tensor>& c0;
  const std::optional<at::Tensor>& lengths;
  const std::optional<at::Tensor>& reset;

  auto tensors() const {
    return std::tie(input, weight_ih, weight_hh, bias, h0, c0, lengths, reset);
  }
  auto weight_tensors() const { return std::tie(weight_ih, weight_hh); }
};

/// The backward operator of a sequence takes the gradients and the values of the results, and then
/// the arguments of the sequence.
template <typename Sequence>
struct BackwardArgumentsOf {
  static constexpr const char* kOperator = Sequence::kBackwardOperator;
  static constexpr bool kHasSteps = true;

  const std::optional<at::Tensor>& grad_output;
  const std::optional<at::Tensor>& grad_h_n;
  const std::optional<at::Tensor>& grad_c_n;
  const std::optional<at::Tensor>& grad_cells;
  const at::Tensor& output;
  const at::Tensor& cells;
  const at::Tensor& gates;
  Sequence sequence;

  auto tensors() const {
    return std::tuple_cat(
        std::tie(grad_output, grad_h_n, grad_c_n, grad_cells, output, cells, gates),
        sequence.tensors());
  }
};

using SequenceBackwardArguments = BackwardArgumentsOf<SequenceArguments>;
using LstmBackwardArguments = BackwardArgumentsOf<LstmArguments>;

/// Whether the backward of a sequence was given any gradient of a result; otherwise all gradients
/// of arguments are zero.
template <typename Sequence>
bool any_gradient(const BackwardArgumentsOf<Sequence>& arguments) {
  return is_given(arguments.grad_output) || is_given(arguments.grad_h_n) ||
         is_given(arguments.grad_c_n) || is_given(arguments.grad_cells);
}

/// The dtype of a sequence's c_n, and of the gradients of c0 and c_n: c0's dtype if c0 is given,
/// else input's.
template <typename Sequence>
at::ScalarType final_cell_dtype(const Sequence& arguments) {
  return (is_given(arguments.c0) ? *arguments.c0 : arguments.input).scalar_type();
}

}  // namespace lltm
