// The backward operators written in differentiable ATen operations: the composite formula.
//
// It is used where a fused kernel cannot be: for forward-mode AD of the backward, and the legacy
// vmap. Matrix products run in the tensors' dtype, pointwise operations in the accumulation type,
// and autocast is off. It loops over the steps, so tracers treat their number as a constant.
#pragma once

#include "../operators/checks.h"
#include "../operators/operators.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <tuple>

namespace lltm::formula {

/// The formulas of the private operators that return the gradients of gates. They recompute z from
/// input and output, because gates is not differentiable.
template <typename Arguments, size_t states>
GateGradientsOf<states> gate_gradients(const Arguments& arguments,
                                       bool reverse,
                                       std::array<bool, states> state_mask);

/// The results of the backward operators of a sequence from those of the operators above: the sums
/// over d_gates.
OptionalGradients<5> finish_gradients(const GateGradients& gate_gradients,
                                      const LltmSequenceBackwardArguments& arguments,
                                      bool reverse,
                                      std::array<bool, 5> output_mask);
OptionalGradients<6> finish_gradients(const GateGradients& gate_gradients,
                                      const LstmBackwardArguments& arguments,
                                      bool reverse,
                                      std::array<bool, 6> output_mask);
OptionalGradients<6> finish_gradients(const OneStateGateGradients& gate_gradients,
                                      const GruBackwardArguments& arguments,
                                      bool reverse,
                                      std::array<bool, 6> output_mask);

/// The formulas of the backward operators of a sequence: the two above.
template <typename Arguments, size_t count>
auto sequence_backward(const Arguments& arguments,
                       bool reverse,
                       std::array<bool, count> output_mask) {
  constexpr size_t kStates = Arguments::kCell.carries_h ? 1 : 2;
  return finish_gradients(gate_gradients(arguments, reverse, state_mask<kStates>(output_mask)),
                          arguments,
                          reverse,
                          output_mask);
}

/// The formula of lltm::backward, as that of a sequence of one step.
OptionalGradients<5> backward(const BackwardArguments& arguments, std::array<bool, 5> output_mask);

}  // namespace lltm::formula
