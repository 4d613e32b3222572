// All steps of a sequence by one kernel, beside the products over all steps (kernels/recurrence).
#pragma once

#include "../operators/checks.h"
#include "../operators/gradients.h"
#include "../operators/outputs.h"
#include "plan/recurrence.h"
#include "runtime/device.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lltm::cuda {

/// How many steps of z_x are computed at once: all of them where gates are kept, which z_x is then
/// written to, otherwise as many as the workspace has room for. Zero if not even one fits.
int64_t steps_of_z_x(const SequenceOutputs& outputs, const SequenceArguments& arguments);

/// Whether the kernels can read and write pairs of neighboring elements (RecurrenceShape).
bool is_in_pairs(const SequenceArguments& arguments);
bool is_in_pairs(const SequenceBackwardArguments& arguments);
bool input_is_in_pairs(const SequenceArguments& arguments);

/// lltm::sequence, for at least one step.
void run_recurrence(const RecurrenceCandidate& candidate,
                    const SequenceOutputs& outputs,
                    const SequenceArguments& arguments,
                    const Device& device,
                    bool reverse);

/// Computes d_gates of all steps, a (steps * batch, 3 * state_size) matrix whose rows may be
/// padded, and those of d_bias, d_h0 and d_c0 that are wanted. Where their products are small, also
/// d_weights and d_input; returns whether it did.
bool run_recurrence_backward(const RecurrenceCandidate& candidate,
                             const at::Tensor& d_gates,
                             const SequenceGradients& gradients,
                             const SequenceBackwardArguments& arguments,
                             const Device& device,
                             bool reverse);

}  // namespace lltm::cuda
