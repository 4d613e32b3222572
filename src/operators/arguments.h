// The arguments of the operators, and the sizes that they have.
#pragma once

#include "../cell/descriptor.h"
#include "../dispatch/optional_tensor.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
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
// is true for the operators of a sequence. These also say which argument is the state that is
// carried from step to step in float32 for 16-bit inputs: kCarried and carried().

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

struct LltmSequenceArguments {
  static constexpr const char* kOperator = cell::kLltm.name;
  static constexpr const char* kBackwardOperator = "lltm::sequence_backward";
  static constexpr bool kHasSteps = true;
  static constexpr const CellDescriptor& kCell = cell::kLltm;
  static constexpr std::string_view kCarried = "c0";

  const at::Tensor& input;
  const at::Tensor& weights;
  const std::optional<at::Tensor>& bias;
  const std::optional<at::Tensor>& h0;
  const std::optional<at::Tensor>& c0;
  const std::optional<at::Tensor>& lengths;
  const std::optional<at::Tensor>& reset;

  auto tensors() const { return std::tie(input, weights, bias, h0, c0, lengths, reset); }
  auto weight_tensors() const { return std::tie(weights); }
  const std::optional<at::Tensor>& carried() const { return c0; }
};

struct LstmArguments {
  static constexpr const char* kOperator = cell::kLstm.name;
  static constexpr const char* kBackwardOperator = "lltm::lstm_backward";
  static constexpr bool kHasSteps = true;
  static constexpr const CellDescriptor& kCell = cell::kLstm;
  static constexpr std::string_view kCarried = "c0";

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
  const std::optional<at::Tensor>& carried() const { return c0; }
};

struct GruArguments {
  static constexpr const char* kOperator = cell::kGru.name;
  static constexpr const char* kBackwardOperator = "lltm::gru_backward";
  static constexpr bool kHasSteps = true;
  static constexpr const CellDescriptor& kCell = cell::kGru;
  static constexpr std::string_view kCarried = "h0";

  const at::Tensor& input;
  const at::Tensor& weight_ih;
  const at::Tensor& weight_hh;
  const std::optional<at::Tensor>& bias_ih;
  const std::optional<at::Tensor>& bias_hh;
  const std::optional<at::Tensor>& h0;
  const std::optional<at::Tensor>& lengths;
  const std::optional<at::Tensor>& reset;

  auto tensors() const {
    return std::tie(input, weight_ih, weight_hh, bias_ih, bias_hh, h0, lengths, reset);
  }
  auto weight_tensors() const { return std::tie(weight_ih, weight_hh); }
  const std::optional<at::Tensor>& carried() const { return h0; }
};

/// The backward operator of a sequence takes the gradients and the values of the results, and then
/// the arguments of the sequence.
template <typename Sequence>
struct BackwardArgumentsOf {
  static constexpr const char* kOperator = Sequence::kBackwardOperator;
  static constexpr bool kHasSteps = true;
  static constexpr const CellDescriptor& kCell = Sequence::kCell;

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

/// A GRU has no other state than h.
template <>
struct BackwardArgumentsOf<GruArguments> {
  static constexpr const char* kOperator = GruArguments::kBackwardOperator;
  static constexpr bool kHasSteps = true;
  static constexpr const CellDescriptor& kCell = GruArguments::kCell;

  const std::optional<at::Tensor>& grad_output;
  const std::optional<at::Tensor>& grad_h_n;
  const at::Tensor& output;
  const at::Tensor& gates;
  GruArguments sequence;

  auto tensors() const {
    return std::tuple_cat(std::tie(grad_output, grad_h_n, output, gates), sequence.tensors());
  }
};

using LltmSequenceBackwardArguments = BackwardArgumentsOf<LltmSequenceArguments>;
using LstmBackwardArguments = BackwardArgumentsOf<LstmArguments>;
using GruBackwardArguments = BackwardArgumentsOf<GruArguments>;

/// The gradients of a sequence's results, as a cell has them whose state is h and a cell state: if
/// the state that is carried is h itself, then the cell state is h, and output has those of all
/// steps.
struct ResultGradients {
  template <typename Sequence>
  explicit ResultGradients(const BackwardArgumentsOf<Sequence>& arguments)
      : grad_output(arguments.grad_output),
        grad_h_n(arguments.grad_h_n),
        grad_c_n(arguments.grad_c_n),
        grad_cells(arguments.grad_cells) {}
  explicit ResultGradients(const GruBackwardArguments& arguments)
      : grad_output(arguments.grad_output),
        grad_h_n(kAbsent),
        grad_c_n(arguments.grad_h_n),
        grad_cells(kAbsent) {}

  /// Otherwise all gradients of arguments are zero.
  bool any_given() const {
    return is_given(grad_output) || is_given(grad_h_n) || is_given(grad_c_n) ||
           is_given(grad_cells);
  }

  const std::optional<at::Tensor>& grad_output;
  const std::optional<at::Tensor>& grad_h_n;
  const std::optional<at::Tensor>& grad_c_n;
  const std::optional<at::Tensor>& grad_cells;
};

/// The cell states after each step, by the same token.
template <typename Sequence>
const at::Tensor& cells_of(const BackwardArgumentsOf<Sequence>& arguments) {
  return arguments.cells;
}
inline const at::Tensor& cells_of(const GruBackwardArguments& arguments) {
  return arguments.output;
}

/// The dtype of the final state that a sequence carries, and of the gradients of that and of the
/// initial one: the initial one's dtype if it is given, else input's.
template <typename Sequence>
at::ScalarType final_cell_dtype(const Sequence& arguments) {
  return (is_given(arguments.carried()) ? *arguments.carried() : arguments.input).scalar_type();
}

}  // namespace lltm
