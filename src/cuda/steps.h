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
#include "plan/plan.h"
#include "plan/sequence_gradients.h"
#include "runtime/device.h"
#include "step_problem.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lltm::cuda {

/// What carries h or the cell state from step to step.
struct CarriedBy {
  bool initial = false;  // the first step reads h0 or c0 in place
  bool result = false;   // the others read what the step before kept: output or cells
  int64_t buffers = 0;   // for the rest; two alternate
};

/// Where everything is stored. It depends only on sizes and strides.
struct StepsLayout : StepOperands {
  int64_t steps = 0, batch = 0;
  // Whether rows have lengths or resets of their own. Otherwise all run, starting and ending
  // together.
  bool own_rows = false;
  CarriedBy h, cell;  // the cell state in float, in c_n where that is float
  // Whether the last step writes c_n in place of cells, which are not kept.
  bool last_step_writes_c_n = false;
  // Elements of a row of z_x, in the operands' type, and of a copy of the input. Zero: the steps
  // multiply the input.
  int64_t hoisted_row = 0;

  bool hoists_input() const { return hoisted_row > 0; }
  bool has_start() const { return own_rows || !h.initial || !cell.initial; }
  /// Elements of a row of a chunk, of z_x or of a copy of the input. Zero: there are no chunks.
  int64_t chunk_row() const {
    return hoists_input() ? hoisted_row : copies_input ? input_stride() : 0;
  }
  /// The steps of a chunk of `rows` rows.
  int64_t steps_a_chunk(int64_t rows) const;
  /// The number of rows whose part of the workspace fits its share.
  int64_t rows_at_a_time() const;

 private:
  int64_t chunk_bytes() const;
};

/// Microseconds of a step that no model estimates.
constexpr double kSlowStep = 20;

/// How the steps are run.
struct StepsPlan {
  StepsLayout layout;
  int64_t rows_at_a_time = 0;
  ForwardPlan kernel{};   // without a candidate where there are no kernels
  double us = kSlowStep;  // of a step, with its part of z_x

  /// Whether the library computes the products (library/sequence.h): in float64, on GPUs older than
  /// sm_80, without steps, and for sizes at which it is faster.
  bool by_library() const { return kernel.choice.candidate == nullptr || kernel.by_library(); }
};

/// The steps multiply the input themselves, unless it takes clearly less to compute z_x before.
/// Those of the LSTM, whose weights are two matrices, never do.
StepsPlan plan_steps(const SequenceOutputs& outputs,
                     const RecurrentArguments& arguments,
                     const DeviceFacts& facts);

/// Writes every element of the outputs, by a plan other than the library's. The batch and the state
/// must not be empty.
void run_steps(const StepsPlan& plan,
               const SequenceOutputs& outputs,
               const RecurrentArguments& arguments,
               const Device& device,
               bool reverse);

/// Computes d_gates of all steps, a (steps * batch, gates) matrix whose rows TMA can describe, and
/// those of d_h0 and d_c0 that are wanted, by the kernel of a choice.
void run_steps_backward(const SequenceGradientChoice& choice,
                        const at::Tensor& d_gates,
                        const RecurrentGradients& gradients,
                        const RecurrentBackwardArguments& arguments,
                        const Device& device,
                        bool reverse);

}  // namespace lltm::cuda
