// The LLTM cell as the kernels of the recurrence see it. They know a cell only by such a policy:
// the number of its gates and the forward and backward of an element. Another cell, such as an LSTM
// with a forget gate, is another policy.
#pragma once

#include "../../../cell/lltm.h"

namespace lltm::cuda {

struct LltmCell {
  static constexpr int kGates = 3;

  /// What the backward of an element needs besides the incoming gradients.
  using Derivatives = cell::Derivatives<float>;

  /// Returns new_h, and turns the cell state into the new one.
  template <typename Math>
  static __device__ __forceinline__ float forward(const float (&z)[kGates], float& cell) {
    const cell::State<float> state = cell::forward<Math>(gates_of(z), cell);
    cell = state.cell;
    return state.h;
  }

  template <typename Math>
  static __device__ __forceinline__ Derivatives derivatives(const float (&z)[kGates],
                                                            float new_cell) {
    return cell::derivatives<Math>(gates_of(z), new_cell);
  }

  /// Computes the gradients of z, and turns the gradient of the new cell state into that of the old
  /// one.
  static __device__ __forceinline__ void backward(const Derivatives& by,
                                                  float grad_h,
                                                  float& grad_cell,
                                                  float (&d_z)[kGates]) {
    const auto gradients = cell::backward(by, grad_h, grad_cell);
    d_z[0] = gradients.gates.input_gate;
    d_z[1] = gradients.gates.output_gate;
    d_z[2] = gradients.gates.candidate;
    grad_cell = gradients.old_cell;
  }

 private:
  static __device__ __forceinline__ cell::Gates<float> gates_of(const float (&z)[kGates]) {
    return {z[0], z[1], z[2]};
  }
};

}  // namespace lltm::cuda
