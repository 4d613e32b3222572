// The backward operators of a sequence on the CPU, and the private ones that return the gradients
// of gates.
#include "../operators/operators.h"
#include "../operators/recurrent_gradients.h"
#include "fused/sequence.h"
#include "library/sequence.h"
#include "plan.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace lltm::cpu {
namespace {

at::Tensor empty(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::detail::empty_cpu(shape, dtype);
}

/// Computes gradients in either way.
auto compute_for(const SequenceSizes<int64_t>& sizes, bool reverse) {
  return [&sizes, reverse](const RecurrentGradients& gradients,
                           const RecurrentBackwardArguments& arguments) {
    (plan_sequence(arguments.sequence, sizes) == Path::kFused
         ? fused_sequence_backward_out
         : library_sequence_backward_out)(gradients, arguments, sizes, reverse);
  };
}

template <typename Arguments, size_t count>
auto sequence_backward(const Arguments& arguments,
                       bool reverse,
                       std::array<bool, count> output_mask) {
  const auto sizes = check<int64_t>(arguments);
  return gradients_of_sequence(arguments, sizes, output_mask, empty, compute_for(sizes, reverse));
}

template <typename Arguments, size_t states>
GateGradientsOf<states> gradients_of_gates(const Arguments& arguments,
                                           bool reverse,
                                           std::array<bool, states> state_mask) {
  const auto sizes = check<int64_t>(arguments);
  return gate_gradients_of_sequence(
      arguments, sizes, state_mask, empty, compute_for(sizes, reverse));
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CPU, m) {
  for_each_cell([&]<typename Cell>() {
    using Backward = typename Cell::Backward;
    using GateGradients = typename Cell::GateGradients;
    Backward::template implement<sequence_backward<typename Backward::Arguments>>(m);
    GateGradients::template implement<gradients_of_gates<typename GateGradients::Arguments>>(m);
  });
}

}  // namespace lltm::cpu
