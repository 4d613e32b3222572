// lltm::sequence_backward on the CPU, and lltm::_sequence_gate_gradients.
#include "../dispatch/dispatcher_kernel.h"
#include "../dispatch/int64_lengths.h"
#include "../operators/checks.h"
#include "../operators/gate_gradients.h"
#include "../operators/gradients.h"
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

/// with_gates: whether to return the gradient of the gates, too.
SequenceGradients gradients_of(const SequenceBackwardArguments& arguments,
                               bool reverse,
                               const std::array<bool, 5>& output_mask,
                               bool with_gates) {
  const auto sizes = check<int64_t>(arguments);
  const auto& [steps, batch, input_features, state_size] = sizes;
  const Tensor &input = arguments.input, &weights = arguments.weights;
  const bool anything_to_do = arguments.any_gradient() && batch * state_size > 0;
  const auto new_if = [&](bool wanted, at::IntArrayRef shape, at::ScalarType dtype) {
    const auto options = input.options().dtype(dtype);
    return !wanted          ? Tensor()
           : anything_to_do ? at::empty(shape, options)
                            : at::zeros(shape, options);
  };
  const auto dtype = input.scalar_type();
  const SequenceGradients gradients{
      .input = new_if(output_mask[kInput], input.sizes(), dtype),
      .weights = new_if(output_mask[kWeights], weights.sizes(), dtype),
      .bias = new_if(output_mask[kBias], {3 * state_size}, dtype),
      .h0 = new_if(output_mask[kH0], {batch, state_size}, dtype),
      .c0 = new_if(output_mask[kC0], {batch, state_size}, final_cell_dtype(arguments.sequence())),
      .gates = new_if(with_gates, {steps, batch, 3 * state_size}, dtype)};
  if (anything_to_do && gradients.any_wanted()) {
    const Path path = plan_sequence(arguments.sequence(), sizes, Pass::kBackward);
    (path == Path::kFused ? fused_sequence_backward_out : library_sequence_backward_out)(
        gradients, arguments, reverse);
  }
  return gradients;
}

OptionalGradients sequence_backward(const SequenceBackwardArguments& arguments,
                                    bool reverse,
                                    std::array<bool, 5> output_mask) {
  return gradients_of(arguments, reverse, output_mask, /*with_gates=*/false).results();
}

GateGradients sequence_gate_gradients(const SequenceBackwardArguments& arguments,
                                      bool reverse,
                                      std::array<bool, 2> state_mask) {
  const auto gradients = gradients_of(arguments,
                                      reverse,
                                      {false, false, false, state_mask[0], state_mask[1]},
                                      /*with_gates=*/true);
  return {gradients.gates, if_defined(gradients.h0), if_defined(gradients.c0)};
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CPU, m) {
  m.impl("sequence_backward",
         dispatcher_kernel<with_int64_lengths<sequence_backward>, lltm::sequence_backward>());
  m.impl("_sequence_gate_gradients",
         dispatcher_kernel<with_int64_lengths<sequence_gate_gradients>,
                           lltm::sequence_gate_gradients>());
}

}  // namespace lltm::cpu
