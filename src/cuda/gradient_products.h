// The gradients of a sequence that are sums over all steps: d_weights, d_input and d_bias, from
// d_gates of all steps, a (steps * batch, gates) matrix. Those that are undefined are not wanted.
#pragma once

#include "../operators/recurrent.h"
#include "plan/facts.h"
#include "runtime/device.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace lltm::cuda {

/// Computes d_weights and d_input: in float32 usually by the kernel of the cell's products,
/// otherwise by the library.
void compute_gradient_products(const at::Tensor& d_gates,
                               std::optional<Arithmetic> arithmetic,
                               const RecurrentGradients& gradients,
                               const RecurrentBackwardArguments& arguments,
                               const Device& device,
                               const DeviceFacts& facts,
                               bool reverse);

/// The same and d_bias, of which bias_parts are the parts, in one launch or two. Only where the
/// products are small (are_small_gradient_products), after a recurrence.
void compute_small_gradient_products(const at::Tensor& d_gates,
                                     const at::Tensor& bias_parts,
                                     const RecurrentGradients& gradients,
                                     const RecurrentBackwardArguments& arguments,
                                     const Device& device,
                                     const DeviceFacts& facts,
                                     bool reverse);

/// d_bias from its parts, or from d_gates.
void add_bias_parts(const at::Tensor& d_bias, const at::Tensor& bias_parts, const Device& device);
void sum_rows(const at::Tensor& d_bias, const at::Tensor& d_gates);

}  // namespace lltm::cuda
