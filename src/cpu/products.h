// The cell's matrix products on the CPU, by kernels of ours or by ATen.
#pragma once

#include "../checks.h"
#include "../gradients.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace lltm::cpu {

/// Whether the kernels of kernels.h form the products of tensors of this type, or ATen does. The
/// environment variable LLTM_CPU_GEMM (own or aten) forces either.
/// @throws c10::Error for any other value of LLTM_CPU_GEMM.
bool has_own_products(at::ScalarType dtype);

/// All of the forward pass, by kernels of kernels.h: gates, new_h and new_cell.
void cell_out(const at::Tensor& new_h,
              const at::Tensor& new_cell,
              const at::Tensor& gates,
              const at::Tensor& input,
              const at::Tensor& weights,
              const std::optional<at::Tensor>& bias,
              const at::Tensor& old_h,
              const at::Tensor& old_cell);

/// What finish_gradients() does, by kernels of kernels.h, for a batch and a state that are not
/// empty.
void finish_own_gradients(const CellGradients& gradients,
                          const at::Tensor& input,
                          const at::Tensor& weights,
                          const at::Tensor& old_h);

}  // namespace lltm::cpu
