// The matrix products of the gradients, with the kernels of kernels/kernels.h, over the rows of a
// batch or of all steps of a sequence.
#pragma once

#include "../gradients.h"
#include "kernels/kernels.h"
#include "packed_columns.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace lltm::cpu {

/// Does the same as finish_gradients(), for a non-empty batch and state.
void finish_own_gradients(const CellGradients& gradients,
                          const at::Tensor& input,
                          const at::Tensor& weights,
                          const at::Tensor& old_h);

/// d_weights = the sum over the rows of d_gates.T @ [old_h | input].
template <typename scalar_t>
void weight_gradient_out(const std::vector<GradientRow<scalar_t>>& rows,
                         int64_t state_size,
                         int64_t input_features,
                         scalar_t* d_weights);

/// d_bias = the sum over the rows of d_gates.
template <typename scalar_t>
void bias_gradient_out(const std::vector<GradientRow<scalar_t>>& rows,
                       int64_t state_size,
                       scalar_t* d_bias);

/// out = d_gates @ weights, for each row.
template <typename scalar_t>
void state_gradient_out(const std::vector<StateGradientRow<scalar_t>>& rows,
                        int64_t state_size,
                        const WeightColumns<scalar_t>& weights);

}  // namespace lltm::cpu
