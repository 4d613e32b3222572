// A sequence of one step as a cell: by the kernels of the cell's forward, which read h0 and c0
// where they are and write every result. Of the LSTM and the GRU, where all rows run and the state
// that is carried has the input's dtype; everything else is a step of a sequence.
#pragma once

#include "../operators/outputs.h"
#include "../operators/recurrent.h"
#include "plan/plan.h"
#include "runtime/device.h"

#include <optional>

namespace lltm::cuda {

/// The shape of a sequence of one step, or nothing if it is no cell. Only alignment counts.
std::optional<Shape> one_step_shape(std::optional<Arithmetic> arithmetic,
                                    const SequenceOutputs& outputs,
                                    const RecurrentArguments& arguments);

/// Writes every element of the outputs. The batch and the state must not be empty.
void run_one_step(const ForwardPlan& plan,
                  const SequenceOutputs& outputs,
                  const RecurrentArguments& arguments,
                  const Device& device);

/// Whether the backward of a sequence of one step is that of a cell: each state has one gradient
/// that comes in, in the dtype of the gates.
bool is_one_step(const RecurrentBackwardArguments& arguments, const RecurrentGradients& gradients);

/// The kernels of that backward. It has to compute something.
Choice plan_one_step_backward(std::optional<Arithmetic> arithmetic,
                              const RecurrentBackwardArguments& arguments,
                              const DeviceFacts& facts);

/// Computes the wanted gradients.
void run_one_step_backward(const Choice& choice,
                           std::optional<Arithmetic> arithmetic,
                           const RecurrentGradients& gradients,
                           const RecurrentBackwardArguments& arguments,
                           const Device& device,
                           const DeviceFacts& facts);

}  // namespace lltm::cuda
