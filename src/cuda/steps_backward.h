// The gradients of a sequence's gates step by step.
#pragma once

#include "../operators/recurrent.h"
#include "plan/sequence_gradients.h"
#include "runtime/device.h"

#include <ATen/core/Tensor.h>

namespace lltm::cuda {

/// Computes d_gates of all steps, a (steps * batch, gates) matrix whose rows TMA can describe, and
/// those of d_h0 and d_c0 that are wanted, by the kernel of a choice.
void run_steps_backward(const SequenceGradientChoice& choice,
                        const at::Tensor& d_gates,
                        const RecurrentGradients& gradients,
                        const RecurrentBackwardArguments& arguments,
                        const Device& device,
                        bool reverse);

}  // namespace lltm::cuda
