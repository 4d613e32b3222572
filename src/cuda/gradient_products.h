// The gradients of a sequence that are sums over all steps: d_weights, d_input and d_bias, from
// d_gates of all steps, a (steps * batch, gates) matrix. Those that are undefined are not wanted.
#pragma once

#include "../dispatch/optional_tensor.h"
#include "../operators/recurrent.h"
#include "plan/facts.h"
#include "problem.h"
#include "runtime/device.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace lltm::cuda {

/// Where d_weights are written.
template <typename scalar_t>
WeightGradients<scalar_t> weight_gradients(const RecurrentGradients& gradients) {
  const auto stride = [](const at::Tensor& of) { return of.defined() ? of.stride(0) : 0; };
  return {.of_h = mutable_data_or_null<scalar_t>(gradients.weight_hh),
          .of_input = mutable_data_or_null<scalar_t>(gradients.weight_ih),
          .h_stride = stride(gradients.weight_hh),
          .input_stride = stride(gradients.weight_ih)};
}

/// Computes d_weights and d_input: in float32 usually by the kernel of the cell's products,
/// otherwise by the library. If it is defined, also d_h0 of a sequence of one step, d_gates @
/// weight_hh.
void compute_gradient_products(const at::Tensor& d_gates,
                               std::optional<Arithmetic> arithmetic,
                               const RecurrentGradients& gradients,
                               const at::Tensor& d_h0,
                               const RecurrentBackwardArguments& arguments,
                               const Device& device,
                               const DeviceFacts& facts,
                               bool reverse);

/// d_weights = d_gates.T @ operand and d_operand = d_gates @ weights, of one side of a cell that
/// does not add its sides, in one step. Either may be undefined: it is not wanted.
struct ProductsOfSide {
  at::Tensor d_weights, d_operand;
  at::Tensor d_gates;  // (batch, those of the side), in rows that TMA can describe
  at::Tensor operand;  // (batch, columns); unused without d_weights
  at::Tensor weights;
  bool adds = false;  // to what d_operand has
};
void compute_products_of_side(const ProductsOfSide& of,
                              std::optional<Arithmetic> arithmetic,
                              const RecurrentArguments& sequence,
                              const Device& device,
                              const DeviceFacts& facts);

/// The same as compute_gradient_products and d_bias, of which bias_parts are the parts, in one
/// launch or two. Only where the products are small (are_small_gradient_products), after a
/// recurrence.
void compute_small_gradient_products(const at::Tensor& d_gates,
                                     const at::Tensor& bias_parts,
                                     const RecurrentGradients& gradients,
                                     const RecurrentBackwardArguments& arguments,
                                     const Device& device,
                                     const DeviceFacts& facts,
                                     bool reverse);

/// The gradients of biases, at least one of which is wanted, as the sum of the rows of `terms`:
/// d_gates, or parts of their sum in the accumulation type.
void compute_bias_gradients(const RecurrentGradients& gradients,
                            const at::Tensor& terms,
                            CellType cell,
                            int64_t state_size,
                            const Device& device);

}  // namespace lltm::cuda
