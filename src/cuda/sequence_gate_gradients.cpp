// lltm::_sequence_gate_gradients on CUDA.
#include "../cell/products.h"
#include "../dispatch/argument_list.h"
#include "../dispatch/dispatcher_kernel.h"
#include "../operators/checks.h"
#include "../operators/gate_gradients.h"
#include "lltm/lltm.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

namespace lltm::cuda {
namespace {

using at::Tensor;

/// By lltm::sequence_backward, which returns d_gates as d_input if the columns of the weights that
/// belong to input are the identity. The values of input do not matter: d_weights is not requested.
GateGradients through_identity(const SequenceBackwardArguments& arguments,
                               bool reverse,
                               std::array<bool, 2> state_mask) {
  const auto sizes = check<int64_t>(arguments);
  const int64_t gates = 3 * sizes.state_size;
  const auto options = arguments.weights.options();
  auto list = list_of(arguments);
  list[SequenceBackwardArguments::kInput] =
      at::zeros({1, 1, 1}, options).expand({sizes.steps, sizes.batch, gates});
  list[SequenceBackwardArguments::kWeights] =
      at::cat({h_columns(arguments.weights), at::eye(gates, options)}, /*dim=*/1);
  const std::array mask{true, false, false, state_mask[0], state_mask[1]};
  auto [d_gates, d_weights, d_bias, d_h0, d_c0] = call(sequence_backward, list, reverse, mask);
  return {std::move(d_gates), if_defined(d_h0), if_defined(d_c0)};
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CUDA, m) {
  m.impl("_sequence_gate_gradients",
         dispatcher_kernel<through_identity, sequence_gate_gradients>());
}

}  // namespace lltm::cuda
