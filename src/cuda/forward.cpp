// lltm::forward on CUDA.
#include "../checks.h"
#include "../products.h"
#include "kernels.h"
#include "launch_check.h"

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

namespace lltm::cuda {
namespace {

using at::Tensor;

std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& input,
                                           const Tensor& weights,
                                           const std::optional<Tensor>& bias,
                                           const Tensor& old_h,
                                           const Tensor& old_cell) {
  const auto [batch, input_features, state_size] =
      check<int64_t>(ForwardArguments{input, weights, bias, old_h, old_cell});
  const c10::cuda::CUDAGuard device_guard(input.device());

  Tensor new_h = at::empty({batch, state_size}, input.options());
  Tensor new_cell = at::empty({batch, state_size}, input.options());
  Tensor gates = at::empty({batch, 3 * state_size}, input.options());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  if (new_h.numel() == 0) {
    return {new_h, new_cell, gates};
  }

  pre_activations_out(gates, input, weights, bias, old_h);

  const Tensor old_cell_ = old_cell.contiguous();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, input.scalar_type(), "lltm::forward", [&] {
        launch_forward(ForwardParams<scalar_t>{batch,
                                               state_size,
                                               gates.const_data_ptr<scalar_t>(),
                                               old_cell_.const_data_ptr<scalar_t>(),
                                               new_h.mutable_data_ptr<scalar_t>(),
                                               new_cell.mutable_data_ptr<scalar_t>()},
                       stream);
      });
  check_launch();
  return {new_h, new_cell, gates};
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CUDA, m) {
  m.impl("forward", TORCH_FN(forward));
}

}  // namespace lltm::cuda
