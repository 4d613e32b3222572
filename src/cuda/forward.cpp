// lltm::forward on CUDA.
#include "../checks.h"
#include "../products.h"
#include "kernels/forward_kernels.h"
#include "plan.h"
#include "problem.h"
#include "runtime/device.h"
#include "runtime/launch_check.h"
#include "runtime/rows.h"

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace lltm::cuda {
namespace {

using at::Tensor;

struct Outputs {
  Tensor new_h, new_cell, gates;
};

template <Arithmetic kArithmetic>
cudaError_t launch(const ForwardProblem& params, const ForwardPath& path, cudaStream_t stream) {
  if constexpr (kArithmetic == Arithmetic::kFloat32) {
    if (const auto* columns = std::get_if<FewRowsColumns>(&path.tile)) {
      return launch_forward_few_rows(params, columns->count, stream);
    }
    if (const auto* tile = std::get_if<ThreeTf32Tile>(&path.tile)) {
      return launch_forward_three_tf32(params, *tile, path.split, stream);
    }
  } else if (const auto* tile = std::get_if<WgmmaTile>(&path.tile)) {
    return launch_forward_wgmma<kArithmetic>(params, *tile, path.split, stream);
  }
  return launch_forward_tiles<kArithmetic>(
      params, std::get<ForwardTile>(path.tile), path.split, stream);
}

cudaError_t launch_any(const ForwardProblem& params, const ForwardPath& path, cudaStream_t stream) {
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

void forward_by_tiles(const Outputs& outputs,
                      const ForwardArguments& arguments,
                      const CellSizes<int64_t>& sizes,
                      const ForwardPath& path,
                      cudaStream_t stream) {
  const Rows input(arguments.input), weights(arguments.weights), old_h(arguments.old_h),
      old_cell(arguments.old_cell);
  const Tensor bias = is_given(arguments.bias) ? arguments.bias->contiguous() : Tensor();
  const ForwardProblem params{
      .batch = sizes.batch,
      .input_features = sizes.input_features,
      .state_size = sizes.state_size,
      .input = input.matrix(),
      .weights = weights.matrix(),
      .bias = bias.defined() ? bias.const_data_ptr() : nullptr,
      .old_h = old_h.matrix(),
      .old_cell = old_cell.matrix(),
      .new_h = outputs.new_h.mutable_data_ptr(),
      .new_cell = outputs.new_cell.mutable_data_ptr(),
      .gates = outputs.gates.mutable_data_ptr(),
  };
  check_launch(launch_any(params, path, stream));
}

void forward_by_library(const Outputs& outputs,
                        const ForwardArguments& arguments,
                        const CellSizes<int64_t>& sizes,
                        cudaStream_t stream) {
  pre_activations_out(
      outputs.gates, arguments.input, arguments.weights, arguments.bias, arguments.old_h);
  const Tensor old_cell_ = arguments.old_cell.contiguous();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, arguments.input.scalar_type(), "lltm::forward", [&] {
        const CellForwardParams<scalar_t> params{sizes.batch,
                                                 sizes.state_size,
                                                 outputs.gates.const_data_ptr<scalar_t>(),
                                                 old_cell_.const_data_ptr<scalar_t>(),
                                                 outputs.new_h.mutable_data_ptr<scalar_t>(),
                                                 outputs.new_cell.mutable_data_ptr<scalar_t>()};
        check_launch(launch_cell_forward(params, stream));
      });
}

std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& input,
                                           const Tensor& weights,
                                           const std::optional<Tensor>& bias,
                                           const Tensor& old_h,
                                           const Tensor& old_cell) {
  const ForwardArguments arguments{input, weights, bias, old_h, old_cell};
  const auto sizes = check<int64_t>(arguments);
  const Device device(input);
  const auto empty = [&](int64_t columns) {
    return device.empty({sizes.batch, columns}, input.scalar_type());
  };
  Outputs outputs{empty(sizes.state_size), empty(sizes.state_size), empty(3 * sizes.state_size)};
  if (outputs.new_h.numel() > 0) {
    const cudaStream_t stream = device.stream();
    if (const auto path = plan_forward(device.properties(),
                                       input.scalar_type(),
                                       sizes,
                                       rows_at_16_bytes(input, weights, old_h, sizes.state_size))) {
      forward_by_tiles(outputs, arguments, sizes, *path, stream);
    } else {
      forward_by_library(outputs, arguments, sizes, stream);
    }
  }
  return {std::move(outputs.new_h), std::move(outputs.new_cell), std::move(outputs.gates)};
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CUDA, m) {
  m.impl("forward", TORCH_FN(forward));
}

}  // namespace lltm::cuda
