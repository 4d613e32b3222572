// lltm::backward on CUDA.
#include "../checks.h"
#include "../gradients.h"
#include "../products.h"
#include "kernels/backward_kernels.h"
#include "plan.h"
#include "problem.h"
#include "runtime/device.h"
#include "runtime/device_facts.h"
#include "runtime/launch_check.h"
#include "runtime/rows.h"

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace lltm::cuda {
namespace {

using at::Tensor;

void* data_of(const Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr() : nullptr;
}

// What the gradients are formed from, with rows and elements as the kernels read them.
struct CellRows {
  explicit CellRows(const BackwardArguments& arguments)
      : gates(arguments.gates.contiguous()),
        new_cell(arguments.new_cell.contiguous()),
        input(arguments.input),
        weights(arguments.weights),
        old_h(arguments.old_h) {}

  Tensor gates, new_cell;
  Rows input, weights, old_h;
};

// The incoming gradients as they lie: that of a sum is expanded from one element.
template <typename scalar_t>
GateGradientsParams<scalar_t> cell_params(const CellGradients& gradients,
                                          const BackwardArguments& arguments,
                                          const CellRows& rows,
                                          const CellSizes<int64_t>& sizes) {
  GateGradientsParams<scalar_t> params{};
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
  params.gates = rows.gates.const_data_ptr<scalar_t>();
  params.new_cell = rows.new_cell.const_data_ptr<scalar_t>();
  params.d_gates = mutable_data_or_null<scalar_t>(gradients.gates);
  params.d_bias = mutable_data_or_null<scalar_t>(gradients.bias);
  params.d_old_cell = mutable_data_or_null<scalar_t>(gradients.old_cell);
  return params;
}

BackwardProblem products_params(const CellGradients& gradients,
                                const CellRows& rows,
                                const CellSizes<int64_t>& sizes) {
  return {
      .batch = sizes.batch,
      .input_features = sizes.input_features,
      .state_size = sizes.state_size,
      .d_gates = data_of(gradients.gates),
      .input = rows.input.matrix(),
      .weights = rows.weights.matrix(),
      .old_h = rows.old_h.matrix(),
      .d_old_h = data_of(gradients.old_h),
      .d_input = data_of(gradients.input),
      .d_weights = data_of(gradients.weights),
  };
}

// Memory for the products, or none.
Tensor workspace_of(const BackwardProblem& params, const BackwardPath& path, const Device& device) {
  int64_t floats = 0;
  if (std::holds_alternative<HopperBackwardPairs>(path.tile)) {
    floats = hopper_backward_workspace(params, path.split);
  } else if (const auto* const pairs = std::get_if<Tf32BackwardPairs>(&path.tile)) {
    floats = tf32_backward_workspace(params, pairs->tile, path.split);
  }
  return floats > 0 ? device.empty({floats}, at::kFloat) : Tensor();
}

// d_gates, d_bias and d_old_cell.
template <typename scalar_t>
void gate_gradients(GateGradientsParams<scalar_t> params,
                    const Device& device,
                    cudaStream_t stream) {
  Tensor workspace;
  if (const int64_t elements = gate_gradients_workspace(params.batch, params.state_size);
      elements > 0 && params.d_bias != nullptr) {
    workspace = device.empty({elements}, c10::CppTypeToScalarType<accumulate_t<scalar_t>>::value);
    params.workspace = workspace.mutable_data_ptr();
  }
  check_launch(launch_gate_gradients(params, stream));
}

template <Arithmetic kArithmetic>
cudaError_t launch_products(const BackwardProblem& params,
                            const BackwardPath& path,
                            float* workspace,
                            cudaStream_t stream) {
  if constexpr (kArithmetic == Arithmetic::kFloat32) {
    if (const auto* tile = std::get_if<SplitProductTile>(&path.tile)) {
      return launch_split_backward(params, *tile, path.split, stream);
    }
  } else if constexpr (kArithmetic == Arithmetic::kTf32) {
    if (const auto* pairs = std::get_if<Tf32BackwardPairs>(&path.tile)) {
      return launch_tf32_backward(params, pairs->tile, path.split, pairs->count, workspace, stream);
    }
  } else if (std::holds_alternative<HopperSmallTiles>(path.tile)) {
    return launch_hopper_small_backward<kArithmetic>(params, path.split, stream);
  } else if (const auto* pairs = std::get_if<HopperBackwardPairs>(&path.tile)) {
    return launch_hopper_backward_products<kArithmetic>(
        params, path.split, pairs->count, workspace, stream);
  }
  return launch_backward_tiles<kArithmetic>(
      params, std::get<ProductTile>(path.tile), path.split, stream);
}

cudaError_t launch_products(const BackwardProblem& params,
                            const BackwardPath& path,
                            float* workspace,
                            cudaStream_t stream) {
  switch (path.arithmetic) {
    case Arithmetic::kFloat32:
      return launch_products<Arithmetic::kFloat32>(params, path, workspace, stream);
    case Arithmetic::kTf32:
      return launch_products<Arithmetic::kTf32>(params, path, workspace, stream);
    case Arithmetic::kFloat16:
      return launch_products<Arithmetic::kFloat16>(params, path, workspace, stream);
    case Arithmetic::kBFloat16:
      return launch_products<Arithmetic::kBFloat16>(params, path, workspace, stream);
  }
  return cudaErrorInvalidValue;
}

OptionalGradients backward(const std::optional<Tensor>& grad_h,
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
  const Device device(input);

  DeviceFacts facts;
  check_launch(device_facts(device.properties(), &facts));
  const auto path = plan_backward(
      facts, input.scalar_type(), sizes, rows_at_16_bytes(input, weights, old_h, sizes.state_size));
  const bool few_rows = path && std::holds_alternative<FewRowsStrips>(path->tile);
  const CellGradients gradients = empty_gradients(
      sizes,
      [&](at::IntArrayRef shape) { return device.empty(shape, input.scalar_type()); },
      output_mask,
      /*with_gates=*/!few_rows);
  const cudaStream_t stream = device.stream();
  if (sizes.batch * sizes.state_size == 0 || !gradients.any_wanted()) {
    // Sums over an empty batch.
    finish_gradients(gradients, input, weights, old_h);
    return gradients.results();
  }

  const CellRows rows(arguments);
  const BackwardProblem products = products_params(gradients, rows, sizes);
  const Tensor workspace = path ? workspace_of(products, *path, device) : Tensor();
  auto* const floats = static_cast<float*>(data_of(workspace));
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, input.scalar_type(), "lltm::backward", [&] {
        auto params = cell_params<scalar_t>(gradients, arguments, rows, sizes);
        if constexpr (sizeof(scalar_t) < 8) {
          if (few_rows) {
            check_launch(launch_backward_few_rows(params, products, path->split, stream));
            return;
          }
        }
        // In 16 bits what follows gains by it: blocks that fill a multiprocessor each cannot crowd
        // on those that are free, and (64,512,512) takes 6.1 us, not 6.8.
        params.starts_next = path && sizeof(scalar_t) == 2;
        if (path && std::holds_alternative<Tf32BackwardPairs>(path->tile)) {
          params.rounds_to_tf32 = true;
          params.inputs = transposed_inputs(products, floats);
        }
        gate_gradients(params, device, stream);
      });
  if (few_rows) {
    return gradients.results();
  }
  if (path) {
    if (products.d_old_h != nullptr || products.d_input != nullptr ||
        products.d_weights != nullptr) {
      check_launch(launch_products(products, *path, floats, stream));
    }
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
