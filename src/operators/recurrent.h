// A sequence of either cell, as the devices compute it: lltm::sequence or lltm::lstm with the
// weights as two blocks.
#pragma once

#include "../cell/cell_type.h"
#include "../dispatch/optional_tensor.h"
#include "arguments.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace lltm {

/// Refers to the arguments of the operator.
struct RecurrentArguments {
  CellType cell;
  const at::Tensor& input;
  at::Tensor weights;    // of an LLTM: the matrix that the next two are views of
  at::Tensor weight_ih;  // (gates, input_features)
  at::Tensor weight_hh;  // (gates, state_size)
  const std::optional<at::Tensor>& bias;
  const std::optional<at::Tensor>& h0;
  const std::optional<at::Tensor>& c0;
  std::optional<at::Tensor> lengths;  // in int64
  const std::optional<at::Tensor>& reset;
};

using RecurrentBackwardArguments = BackwardArgumentsOf<RecurrentArguments>;

/// Those that were not requested are undefined.
struct RecurrentGradients {
  at::Tensor input;
  at::Tensor weights;  // of an LLTM: the matrix that the next two are views of
  at::Tensor weight_ih;
  at::Tensor weight_hh;
  at::Tensor bias;
  at::Tensor h0;
  at::Tensor c0;
  at::Tensor gates;  // of every step, which only the private operators return

  bool any_wanted() const {
    return input.defined() || weight_ih.defined() || weight_hh.defined() || bias.defined() ||
           h0.defined() || c0.defined() || gates.defined();
  }
};

/// The lengths as the kernels read them: those in int32 are converted, on their device.
inline std::optional<at::Tensor> int64_lengths(const std::optional<at::Tensor>& lengths) {
  return is_given(lengths) ? std::optional(lengths->to(at::kLong)) : std::nullopt;
}

/// The weights of lltm::sequence are split by views.
RecurrentArguments recurrent(const SequenceArguments& arguments);
RecurrentArguments recurrent(const LstmArguments& arguments);
template <typename Sequence>
RecurrentBackwardArguments recurrent(const BackwardArgumentsOf<Sequence>& arguments) {
  return {.grad_output = arguments.grad_output,
          .grad_h_n = arguments.grad_h_n,
          .grad_c_n = arguments.grad_c_n,
          .grad_cells = arguments.grad_cells,
          .output = arguments.output,
          .cells = arguments.cells,
          .gates = arguments.gates,
          .sequence = recurrent(arguments.sequence)};
}

}  // namespace lltm
