// z_x, the product of a sequence's inputs with their weights, with the bias.
#pragma once

#include "../operators/recurrent.h"
#include "problem.h"
#include "runtime/device.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace lltm::cuda {

/// The biases of what is saved and those that z_x has. If the cell adds its sides, z_x has all.
/// Not in float64.
struct Biases {
  std::optional<at::Tensor> of_saved;  // contiguous
  std::optional<at::Tensor> of_inputs;

  Biases(const RecurrentArguments& arguments, const Device& device);
};

/// Computes z_x of some steps, a contiguous tensor of shape (steps, rows, gates) in the
/// dtype of their input, (steps, rows, input_features). Returns whether a kernel of this library
/// does, which the next one may overlap. Not in float64.
bool compute_input_product(const at::Tensor& z_x,
                           const at::Tensor& input,
                           const RecurrentArguments& arguments,
                           Arithmetic arithmetic,
                           const Device& device);

/// The columns of the input, if z_x is computed from a copy of them that may be large.
int64_t copied_input_columns(const at::Tensor& input);

}  // namespace lltm::cuda
