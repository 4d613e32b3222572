// The forward pass of a cell on the CPU.
#pragma once

#include "../operators/checks.h"
#include "../operators/recurrent.h"

#include <ATen/core/Tensor.h>

namespace lltm::cpu {

/// Contiguous tensors: new_h and new_cell of shape (batch, state_size), gates of
/// (batch, saved). Those of a sequence's only step have a leading dimension of size 1.
struct CellOutputs {
  const at::Tensor& new_h;
  const at::Tensor& new_cell;  // in 16 bits also float32, as old_cell may be
  const at::Tensor& gates;
  const at::Tensor rounded_cell{};  // also new_cell in 16 bits, or undefined
};

/// Writes every element of the outputs. The batch and the state must not be empty, and the input of
/// a sequence's only step may have a leading dimension of size 1.
void cell_out(const CellOutputs& outputs,
              const ForwardArguments& arguments,
              const CellSizes<int64_t>& sizes);

/// The only step of a sequence, with the kernels of kernels/kernels.h. Of `arguments`, only the
/// parameters are read.
void fused_step_out(const CellOutputs& outputs,
                    const RecurrentArguments& arguments,
                    const at::Tensor& input,
                    const at::Tensor& old_h,
                    const at::Tensor& old_cell,
                    const CellSizes<int64_t>& sizes);

}  // namespace lltm::cpu
