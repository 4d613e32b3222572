// All steps of a sequence by one kernel, beside the products over all steps (kernels/recurrence).
#pragma once

#include "../operators/outputs.h"
#include "../operators/recurrent.h"
#include "plan/sequence.h"
#include "runtime/device.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace lltm::cuda {

/// What z_x is computed of at once, before a launch.
struct ChunkOfZx {
  int64_t rows, steps;

  int64_t launches(const SequenceSizes<int64_t>& sizes) const {
    return steps == 0 ? 0 : ceil_div(sizes.batch, rows) * ceil_div(sizes.steps, steps);
  }
};

/// All steps where gates are kept and z_x is written to them, otherwise as many as the workspace
/// has room for. If it has none for a step, one of some of the rows; no step if it has none for a
/// row.
ChunkOfZx chunk_of_z_x(const SequenceOutputs& outputs,
                       const at::Tensor& input,
                       const SequenceSizes<int64_t>& sizes);

/// Whether the kernels can read and write pairs of neighboring elements (Shape). Those of
/// the forward only depend on the sizes: its tensors are all allocated here.
bool is_in_pairs(const SequenceSizes<int64_t>& sizes);
bool is_in_pairs(const RecurrentBackwardArguments& arguments, const SequenceSizes<int64_t>& sizes);
bool input_is_in_pairs(const at::Tensor& input);

/// The forward, for at least one step. Returns whether it ran: a kernel across the grid does not if
/// its blocks cannot all be resident, as in a context that has a part of the GPU.
[[nodiscard]] bool run_recurrence(const SequencePlan& plan,
                                  Arithmetic arithmetic,
                                  const SequenceOutputs& outputs,
                                  const RecurrentArguments& arguments,
                                  const SequenceSizes<int64_t>& sizes,
                                  const Device& device,
                                  bool reverse);

/// Computes d_gates of all steps, a (steps * batch, gates) matrix whose rows may be padded, and
/// those of d_h0 and d_c0 that are wanted. Returns d_bias, or the sums of d_gates if there are two,
/// in parts, a float32 matrix whose rows are to be added in order, if it is wanted, otherwise an
/// undefined tensor; nothing if it did not run.
std::optional<at::Tensor> run_recurrence_backward(const SequencePlan& plan,
                                                  Arithmetic arithmetic,
                                                  const at::Tensor& d_gates,
                                                  const RecurrentGradients& gradients,
                                                  const RecurrentBackwardArguments& arguments,
                                                  const Device& device,
                                                  bool reverse);

}  // namespace lltm::cuda
