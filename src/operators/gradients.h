// The parts of lltm::backward that all devices share: the requested gradients, and the matrix
// products that follow once a kernel has written d_gates.
#pragma once

#include "../dispatch/optional_tensor.h"
#include "checks.h"
#include "gradient_index.h"

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <array>

namespace lltm {

/// The gradients of a cell. Those that were not requested are undefined.
struct CellGradients {
  at::Tensor input;
  at::Tensor weights;
  at::Tensor bias;
  at::Tensor old_h;
  at::Tensor old_cell;
  at::Tensor gates;  // dz, from which all gradients but old_cell's are computed

  bool any_wanted() const {
    return input.defined() || weights.defined() || bias.defined() || old_h.defined() ||
           old_cell.defined();
  }

  OptionalGradients<5> results() const {
    return {if_defined(input),
            if_defined(weights),
            if_defined(bias),
            if_defined(old_h),
            if_defined(old_cell)};
  }
};

/// Allocates the gradients that output_mask requests by `empty`, which takes a shape. Also
/// allocates the gradient of the gates if one of the others is computed from it and `with_gates` is
/// true.
CellGradients empty_gradients(const CellSizes<int64_t>& sizes,
                              c10::function_ref<at::Tensor(at::IntArrayRef)> empty,
                              const std::array<bool, kGradientCount>& output_mask,
                              bool with_gates = true);

/// Computes the requested gradients of input, weights, bias and old_h from gradients.gates. Sums
/// over an empty batch are zero.
void finish_gradients(const CellGradients& gradients,
                      const at::Tensor& input,
                      const at::Tensor& weights,
                      const at::Tensor& old_h);

}  // namespace lltm
