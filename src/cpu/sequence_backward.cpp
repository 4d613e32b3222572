// lltm::sequence_backward and lltm::lstm_backward on the CPU, and the private operators that return
// the gradients of their gates.
#include "../cell/products.h"
#include "../dispatch/dispatcher_kernel.h"
#include "../operators/checks.h"
#include "../operators/gate_gradients.h"
#include "../operators/gradient_index.h"
#include "../operators/recurrent.h"
#include "fused/sequence.h"
#include "library/sequence.h"
#include "plan.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

namespace lltm::cpu {
namespace {

using at::Tensor;

/// Computes gradients of sequences into new tensors.
template <typename Arguments>
class SequenceBackward {
 public:
  explicit SequenceBackward(const Arguments& arguments)
      : arguments_(arguments),
        sizes_(check<int64_t>(arguments)),
        anything_to_do_(any_gradient(arguments) && sizes_.batch * sizes_.state_size > 0) {}

  Tensor empty_if(bool wanted, at::IntArrayRef shape) const {
    return empty_if(wanted, shape, arguments_.input.scalar_type());
  }
  Tensor state_if(bool wanted) const { return empty_if(wanted, {sizes_.batch, sizes_.state_size}); }
  Tensor cell_if(bool wanted) const {
    return empty_if(
        wanted, {sizes_.batch, sizes_.state_size}, final_cell_dtype(arguments_.sequence()));
  }
  const SequenceSizes<int64_t>& sizes() const { return sizes_; }

  void run(const RecurrentGradients& gradients, bool reverse) const {
    if (!anything_to_do_ || !gradients.any_wanted()) {
      return;
    }
    const RecurrentBackwardArguments arguments = recurrent(arguments_);
    (plan_sequence(arguments.sequence, sizes_) == Path::kFused
         ? fused_sequence_backward_out
         : library_sequence_backward_out)(gradients, arguments, sizes_, reverse);
  }

 private:
  /// Zeros if there is nothing to do.
  Tensor empty_if(bool wanted, at::IntArrayRef shape, at::ScalarType dtype) const {
    const auto options = arguments_.input.options().dtype(dtype);
    return !wanted           ? Tensor()
           : anything_to_do_ ? at::empty(shape, options)
                             : at::zeros(shape, options);
  }

  const Arguments& arguments_;
  const SequenceSizes<int64_t> sizes_;
  const bool anything_to_do_;
};

OptionalGradients sequence_backward(const SequenceBackwardArguments& arguments,
                                    bool reverse,
                                    std::array<bool, 5> output_mask) {
  const SequenceBackward backward(arguments);
  const Tensor d_weights = backward.empty_if(output_mask[kWeights], arguments.weights.sizes());
  const RecurrentGradients gradients{
      .input = backward.empty_if(output_mask[kInput], arguments.input.sizes()),
      .weight_ih = d_weights.defined() ? input_columns(d_weights) : Tensor(),
      .weight_hh = d_weights.defined() ? h_columns(d_weights) : Tensor(),
      .bias = backward.empty_if(output_mask[kBias], {backward.sizes().gates}),
      .h0 = backward.state_if(output_mask[kH0]),
      .c0 = backward.cell_if(output_mask[kC0]),
      .gates = {}};
  backward.run(gradients, reverse);
  return {if_defined(gradients.input),
          if_defined(d_weights),
          if_defined(gradients.bias),
          if_defined(gradients.h0),
          if_defined(gradients.c0)};
}

OptionalLstmGradients lstm_backward(const LstmBackwardArguments& arguments,
                                    bool reverse,
                                    std::array<bool, 6> output_mask) {
  using Index = LstmGradient;
  const SequenceBackward backward(arguments);
  const RecurrentGradients gradients{
      .input = backward.empty_if(output_mask[Index::kInput], arguments.input.sizes()),
      .weight_ih = backward.empty_if(output_mask[Index::kWeightIh], arguments.weight_ih.sizes()),
      .weight_hh = backward.empty_if(output_mask[Index::kWeightHh], arguments.weight_hh.sizes()),
      .bias = backward.empty_if(output_mask[Index::kBias], {backward.sizes().gates}),
      .h0 = backward.state_if(output_mask[Index::kH0]),
      .c0 = backward.cell_if(output_mask[Index::kC0]),
      .gates = {}};
  backward.run(gradients, reverse);
  return {if_defined(gradients.input),
          if_defined(gradients.weight_ih),
          if_defined(gradients.weight_hh),
          if_defined(gradients.bias),
          if_defined(gradients.h0),
          if_defined(gradients.c0)};
}

template <typename Arguments>
GateGradients gate_gradients(const Arguments& arguments,
                             bool reverse,
                             std::array<bool, 2> state_mask) {
  const SequenceBackward backward(arguments);
  const auto& sizes = backward.sizes();
  const RecurrentGradients gradients{
      .input = {},
      .weight_ih = {},
      .weight_hh = {},
      .bias = {},
      .h0 = backward.state_if(state_mask[0]),
      .c0 = backward.cell_if(state_mask[1]),
      .gates = backward.empty_if(true, {sizes.steps, sizes.batch, sizes.gates})};
  backward.run(gradients, reverse);
  return {gradients.gates, if_defined(gradients.h0), if_defined(gradients.c0)};
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CPU, m) {
  m.impl("sequence_backward", dispatcher_kernel<sequence_backward, lltm::sequence_backward>());
  m.impl("_sequence_gate_gradients",
         dispatcher_kernel<gate_gradients<SequenceBackwardArguments>, sequence_gate_gradients>());
  m.impl("lstm_backward", dispatcher_kernel<lstm_backward, lltm::lstm_backward>());
  m.impl("_lstm_gate_gradients",
         dispatcher_kernel<gate_gradients<LstmBackwardArguments>, lstm_gate_gradients>());
}

}  // namespace lltm::cpu
