// The steps of a sequence, and those of its backward, one by one.
//
// The forward's are run by one of the cell's kernels (plan/plan.h) with the epilogue of a step.
// A kernel computes both halves of a step's product, [h | x], and reads h where the previous step
// left it: in output or, where rows are reset, have lengths of their own or do not start at
// multiples of 16 bytes, in two buffers that alternate. The cell state is carried in float: in
// cells or c_n where these are float, otherwise in a buffer. Weights and input that do not start at
// multiples of 16 bytes are copied to rows that every kernel can read in vectors: weights once per
// call, input in chunks of steps. Where that is faster, as it is if L2 has room for the weights of
// h alone, z_x, the product with the inputs, is computed before, in chunks of steps, and the
// kernels multiply h alone.
#pragma once

#include "../operators/outputs.h"
#include "../operators/recurrent.h"
#include "plan/sequence.h"
#include "runtime/device.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lltm::cuda {

/// Writes every element of the outputs, by a plan other than the library's. The batch and the state
/// must not be empty.
void run_steps(const StepsPlan& plan,
               const SequenceOutputs& outputs,
               const RecurrentArguments& arguments,
               const Device& device,
               bool reverse);

/// Computes d_gates of all steps, a (steps * batch, gates) matrix whose rows TMA can describe, and
/// those of d_h0 and d_c0 that are wanted, by the kernel of a choice.
void run_steps_backward(const Choice& choice,
                        std::optional<Arithmetic> arithmetic,
                        const at::Tensor& d_gates,
                        const RecurrentGradients& gradients,
                        const RecurrentBackwardArguments& arguments,
                        const Device& device,
                        bool reverse);

}  // namespace lltm::cuda
