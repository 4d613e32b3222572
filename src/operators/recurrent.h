// A sequence of any cell, as the devices compute it: with the weights as two blocks, and a state of
// h and c.
#pragma once

#include "../cell/descriptor.h"
#include "../dispatch/optional_tensor.h"
#include "arguments.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace lltm {

/// Refers to the arguments of the operator.
struct RecurrentArguments {
  const CellDescriptor& cell;
  const at::Tensor& input;
  at::Tensor weights;                     // of an LLTM: the matrix that the next two are views of
  at::Tensor weight_ih;                   // (gates, input_features)
  at::Tensor weight_hh;                   // (gates, state_size)
  const std::optional<at::Tensor>& bias;  // of both sides, or of the inputs if there is another
  const std::optional<at::Tensor>& bias_hh;  // of the gates
  std::optional<at::Tensor> h0;              // in input's dtype
  const std::optional<at::Tensor>& c0;       // the state that is carried, which may be h0 itself
  std::optional<at::Tensor> lengths;         // in int64
  const std::optional<at::Tensor>& reset;

  /// The same with another bias, which must live as long.
  RecurrentArguments with_bias(const std::optional<at::Tensor>& other) const {
    return {cell, input, weights, weight_ih, weight_hh, other, bias_hh, h0, c0, lengths, reset};
  }
};

/// The weights of lltm::sequence are split by views.
RecurrentArguments recurrent(const LltmSequenceArguments& arguments);
RecurrentArguments recurrent(const LstmArguments& arguments);
RecurrentArguments recurrent(const GruArguments& arguments);

struct RecurrentBackwardArguments : ResultGradients {
  template <typename Sequence>
  explicit RecurrentBackwardArguments(const BackwardArgumentsOf<Sequence>& arguments)
      : ResultGradients(arguments),
        output(arguments.output),
        cells(cells_of(arguments)),
        gates(arguments.gates),
        sequence(recurrent(arguments.sequence)) {}

  const at::Tensor& output;
  const at::Tensor& cells;
  const at::Tensor& gates;
  RecurrentArguments sequence;
};

/// Those that were not requested are undefined.
struct RecurrentGradients {
  at::Tensor input;
  at::Tensor weights;  // of an LLTM: the matrix that the next two are views of
  at::Tensor weight_ih;
  at::Tensor weight_hh;
  at::Tensor bias;     // of both sides, or of the inputs if there is another
  at::Tensor bias_hh;  // of the gates
  at::Tensor h0;       // undefined if c0 is h0 itself
  at::Tensor c0;
  at::Tensor gates;  // of every step, which only the private operators return

  bool any_wanted() const {
    return input.defined() || weight_ih.defined() || weight_hh.defined() || bias.defined() ||
           bias_hh.defined() || h0.defined() || c0.defined() || gates.defined();
  }
};

/// The lengths as the kernels read them: those in int32 are converted, on their device.
inline std::optional<at::Tensor> int64_lengths(const std::optional<at::Tensor>& lengths) {
  return is_given(lengths) ? std::optional(lengths->to(at::kLong)) : std::nullopt;
}

}  // namespace lltm
