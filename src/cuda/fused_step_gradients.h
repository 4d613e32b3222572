// Launches the steps of a sequence's backward, one kernel per step.
#pragma once

#include "kernels/sequence/gradients.h"
#include "plan/sequence_gradients.h"
#include "runtime/device.h"
#include "runtime/launch_check.h"
#include "runtime/tensor_maps.h"
#include "sequence.h"

#include <ATen/core/Tensor.h>

#include <type_traits>
#include <variant>

namespace lltm::cuda {

/// An uninitialized matrix whose rows start at multiples of 16 bytes.
inline at::Tensor rows_of_vectors(int64_t rows,
                                  int64_t columns,
                                  c10::ScalarType dtype,
                                  const Device& device) {
  const auto size = static_cast<int>(c10::elementSize(dtype));
  return device.empty({rows, whole_vectors(columns, size)}, dtype).narrow(1, 0, columns);
}

/// The columns of weights that belong to h, copied if necessary so that rows start at multiples of
/// 16 bytes.
inline at::Tensor padded_h_columns(const at::Tensor& weights, const Device& device) {
  const at::Tensor of_h = h_columns(weights);
  const auto size = static_cast<int>(weights.element_size());
  if (of_h.stride(1) == 1 &&
      is_describable({of_h.const_data_ptr(), of_h.stride(0)}, of_h.size(1), size)) {
    return of_h;
  }
  return rows_of_vectors(of_h.size(0), of_h.size(1), weights.scalar_type(), device).copy_(of_h);
}

/// Launches the kernel that computes a step.
class FusedSteps {
 public:
  FusedSteps(const SequenceGradientPlan& plan,
             Arithmetic arithmetic,
             const at::Tensor& d_gates,
             const at::Tensor& weights,
             const Device& device)
      : plan_(plan),
        arithmetic_(arithmetic),
        weights_h_(padded_h_columns(weights, device)),
        stream_(device.stream()) {
    if (const auto* const tile = std::get_if<Float32GradientTile>(&plan.tile)) {
      const bool described = describe_step_gradients(&maps_,
                                                     *tile,
                                                     {d_gates.const_data_ptr(), d_gates.stride(0)},
                                                     d_gates.size(0),
                                                     matrix(),
                                                     weights_h_.size(1));
      check_launch(described ? cudaSuccess : cudaErrorInvalidValue);
    }
  }

  template <typename scalar_t>
  cudaError_t launch(const SequenceGradientsParams<scalar_t>& params) const {
    if constexpr (std::is_same_v<scalar_t, float>) {
      if (const auto* const tile = std::get_if<Float32GradientTile>(&plan_.tile)) {
        return launch_sequence_gradient_wgmma_float32(params, maps_, *tile, plan_.split, stream_);
      }
    }
    return with_arithmetic(arithmetic_, [&]<Arithmetic kArithmetic>() {
      if constexpr (std::is_same_v<scalar_t, TensorElement<kArithmetic>>) {
        return launch_sequence_gradient_tiles<kArithmetic>(
            params, matrix(), std::get<SequenceGradientTile>(plan_.tile), plan_.split, stream_);
      } else {
        return cudaErrorInvalidValue;  // other tensors, of which float64 has no plan at all
      }
    });
  }

 private:
  Matrix matrix() const { return {weights_h_.const_data_ptr(), weights_h_.stride(0)}; }

  SequenceGradientPlan plan_;
  Arithmetic arithmetic_;
  at::Tensor weights_h_;
  StepGradientMaps maps_;
  cudaStream_t stream_;
};

}  // namespace lltm::cuda
