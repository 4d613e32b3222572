// lltm::backward on CUDA.
#include "../checks.h"
#include "../gradients.h"
#include "../products.h"
#include "kernels.h"
#include "launch_check.h"
#include "path.h"
#include "rows.h"

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

namespace lltm::cuda {
namespace {

using at::Tensor;

void* data_of(const Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr() : nullptr;
}

// d_gates, d_bias and d_old_cell, from the incoming gradients as they lie: that of a sum is
// expanded from one element.
template <typename scalar_t>
void gate_gradients(const CellGradients& gradients,
                    const BackwardArguments& arguments,
                    const CellSizes<int64_t>& sizes,
                    cudaStream_t stream) {
  const Tensor gates_ = arguments.gates.contiguous();
  const Tensor new_cell_ = arguments.new_cell.contiguous();
  BackwardParams<scalar_t> params{};
  params.batch = sizes.batch;
  params.state_size = sizes.state_size;
  if (is_given(arguments.grad_h)) {
    params.grad_h = arguments.grad_h->const_data_ptr<scalar_t>();
    params.grad_h_strides[0] = arguments.grad_h->stride(0);
    params.grad_h_strides[1] = arguments.grad_h->stride(1);
  }
  if (is_given(arguments.grad_cell)) {
    params.grad_cell = arguments.grad_cell->const_data_ptr<scalar_t>();
    params.grad_cell_strides[0] = arguments.grad_cell->stride(0);
    params.grad_cell_strides[1] = arguments.grad_cell->stride(1);
  }
  params.gates = gates_.const_data_ptr<scalar_t>();
  params.new_cell = new_cell_.const_data_ptr<scalar_t>();
  params.d_gates = mutable_data_or_null<scalar_t>(gradients.gates);
  params.d_bias = mutable_data_or_null<scalar_t>(gradients.bias);
  params.d_old_cell = mutable_data_or_null<scalar_t>(gradients.old_cell);
  Tensor workspace;
  if (const int64_t elements = backward_workspace(sizes.batch, sizes.state_size);
      elements > 0 && gradients.bias.defined()) {
    workspace = at::detail::empty_cuda({elements},
                                       c10::CppTypeToScalarType<accumulate_t<scalar_t>>::value,
                                       arguments.input.device(),
                                       std::nullopt);
    params.workspace = workspace.mutable_data_ptr();
  }
  check_launch(launch_backward(params, stream));
}

template <Arithmetic kArithmetic>
cudaError_t launch(const BackwardProductsParams& params,
                   const BackwardPath& path,
                   cudaStream_t stream) {
  if constexpr (kArithmetic == Arithmetic::kFloat32 || kArithmetic == Arithmetic::kTf32) {
    if (const auto* tile = std::get_if<SplitProductTile>(&path.tile)) {
      return launch_split_backward<kArithmetic>(params, *tile, path.split, stream);
    }
  }
  return launch_backward_products<kArithmetic>(
      params, std::get<ProductTile>(path.tile), path.split, stream);
}

cudaError_t launch_any(const BackwardProductsParams& params,
                       const BackwardPath& path,
                       cudaStream_t stream) {
  switch (path.arithmetic) {
    case Arithmetic::kFloat32:
      return launch<Arithmetic::kFloat32>(params, path, stream);
    case Arithmetic::kTf32:
      return launch<Arithmetic::kTf32>(params, path, stream);
    case Arithmetic::kFloat16:
      return launch<Arithmetic::kFloat16>(params, path, stream);
    case Arithmetic::kBFloat16:
      return launch<Arithmetic::kBFloat16>(params, path, stream);
  }
  return cudaErrorInvalidValue;
}

void products_by_tiles(const CellGradients& gradients,
                       const BackwardArguments& arguments,
                       const CellSizes<int64_t>& sizes,
                       const BackwardPath& path,
                       cudaStream_t stream) {
  if (!gradients.input.defined() && !gradients.weights.defined() && !gradients.old_h.defined()) {
    return;
  }
  const Rows input(arguments.input), weights(arguments.weights), old_h(arguments.old_h);
  const BackwardProductsParams params{
      .batch = sizes.batch,
      .input_features = sizes.input_features,
      .state_size = sizes.state_size,
      .d_gates = gradients.gates.const_data_ptr(),
      .input = input.data(),
      .input_stride = input.stride(),
      .weights = weights.data(),
      .weights_stride = weights.stride(),
      .old_h = old_h.data(),
      .old_h_stride = old_h.stride(),
      .d_old_h = data_of(gradients.old_h),
      .d_input = data_of(gradients.input),
      .d_weights = data_of(gradients.weights),
  };
  check_launch(launch_any(params, path, stream));
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward(const std::optional<Tensor>& grad_h,
                                                            const std::optional<Tensor>& grad_cell,
                                                            const Tensor& new_cell,
                                                            const Tensor& gates,
                                                            const Tensor& input,
                                                            const Tensor& weights,
                                                            const std::optional<Tensor>& bias,
                                                            const Tensor& old_h,
                                                            std::array<bool, 5> output_mask) {
  const BackwardArguments arguments{
      grad_h, grad_cell, new_cell, gates, input, weights, bias, old_h};
  const auto sizes = check<int64_t>(arguments);
  const c10::cuda::CUDAGuard device_guard(input.device());

  const CellGradients gradients = empty_gradients(sizes, input.options(), output_mask);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  if (sizes.batch * sizes.state_size == 0 || !gradients.any_wanted()) {
    // Sums over an empty batch.
    finish_gradients(gradients, input, weights, old_h);
    return gradients.results();
  }

  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, input.scalar_type(), "lltm::backward", [&] {
        gate_gradients<scalar_t>(gradients, arguments, sizes, stream);
      });
  if (const auto path = tiles_for_backward(
          input.scalar_type(), sizes, rows_at_16_bytes(input, weights, old_h, sizes.state_size))) {
    products_by_tiles(gradients, arguments, sizes, *path, stream);
    return gradients.results();
  }
  if (gradients.weights.defined()) {
    weight_gradient_out(gradients.weights, gradients.gates, input, old_h);
  }
  if (gradients.input.defined()) {
    input_gradient_out(gradients.input, gradients.gates, weights);
  }
  if (gradients.old_h.defined()) {
    old_h_gradient_out(gradients.old_h, gradients.gates, weights);
  }
  return gradients.results();
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CUDA, m) {
  m.impl("backward", TORCH_FN(backward));
}

}  // namespace lltm::cuda
