// lltm::backward on CUDA.
#include "../checks.h"
#include "../gradients.h"
#include "../products.h"
#include "kernels/backward_kernels.h"
#include "kernels/pack.h"
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
      .d_gates_stride = 3 * sizes.state_size,
      .input = rows.input.matrix(),
      .weights = rows.weights.matrix(),
      .old_h = rows.old_h.matrix(),
      .d_old_h = data_of(gradients.old_h),
      .d_input = data_of(gradients.input),
      .d_weights = data_of(gradients.weights),
  };
}

/// Copies of operands that TMA cannot describe, in rows that it can.
class PackedOperands {
 public:
  /// Leaves in `problem` what the copies are.
  PackedOperands(BackwardProblem& problem, c10::ScalarType dtype, const Device& device) {
    params_.element_size = static_cast<int>(c10::elementSize(dtype));
    const auto describable = [&](const Matrix& matrix, int64_t columns) {
      return columns == 0 ||
             (matrix.stride >= columns && matrix.starts_at_vectors(params_.element_size));
    };
    const int64_t h = problem.state_size, x = problem.input_features;
    const auto pack = [&](Matrix& matrix, int64_t rows, int64_t columns, const Matrix& to) {
      params_.add({.from = matrix, .rows = rows, .columns = columns, .to = to});
      matrix = to;
    };
    const auto empty = [&](Tensor& memory, int64_t rows, int64_t columns) {
      const int64_t stride = packed_stride(columns, params_.element_size);
      memory = device.empty({rows, stride}, dtype);
      return Matrix{memory.mutable_data_ptr(), stride};
    };
    // In TF32 a transposed copy is made of rows that start anywhere.
    const bool reads_inputs = params_.element_size == 2 && problem.d_weights != nullptr;
    if (reads_inputs && !describable(problem.old_h, h)) {
      pack(problem.old_h, problem.batch, h, empty(old_h_, problem.batch, h));
    }
    if (reads_inputs && !describable(problem.input, x)) {
      pack(problem.input, problem.batch, x, empty(input_, problem.batch, x));
    }
    const bool reads_weights = problem.d_old_h != nullptr || problem.d_input != nullptr;
    if (reads_weights && !describable(problem.weights, h + x)) {
      pack(problem.weights, 3 * h, h + x, empty(weights_, 3 * h, h + x));
    }
  }

  cudaError_t launch(cudaStream_t stream) const {
    return params_.count > 0 ? launch_pack(params_, stream) : cudaSuccess;
  }

 private:
  PackParams params_{};
  Tensor old_h_, input_, weights_;
};

template <typename Run>
auto with_wgmma_arithmetic(Arithmetic arithmetic, const Run& run) {
  switch (arithmetic) {
    case Arithmetic::kTf32:
      return run.template operator()<Arithmetic::kTf32>();
    case Arithmetic::kFloat16:
      return run.template operator()<Arithmetic::kFloat16>();
    default:
      return run.template operator()<Arithmetic::kBFloat16>();
  }
}

/// [old_h | input].T for the products in TF32 by wgmma.
TransposedInputs inputs_in_order(const BackwardProblem& problem, float* workspace) {
  TransposedInputs inputs = transposed_inputs(problem, workspace);
  inputs.in_order = true;
  return inputs;
}

int64_t transposed_floats(const BackwardProblem& problem) {
  const TransposedInputs inputs = transposed_inputs(problem, nullptr);
  return problem.d_weights != nullptr ? inputs.columns() * inputs.row_stride() : 0;
}

// Memory for the products, or none.
Tensor workspace_of(const BackwardProblem& params, const BackwardPath& path, const Device& device) {
  int64_t floats = 0;
  if (const auto* const plan = std::get_if<GradientPlan>(&path.tile)) {
    floats = with_wgmma_arithmetic(path.arithmetic, [&]<Arithmetic kArithmetic>() {
      return backward_wgmma_workspace<kArithmetic>(params, *plan);
    });
    if (path.arithmetic == Arithmetic::kTf32) {
      floats += transposed_floats(params);
    }
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
    if (const auto* plan = std::get_if<GradientPlan>(&path.tile)) {
      const TransposedInputs inputs = inputs_in_order(params, workspace);
      return launch_backward_wgmma<kArithmetic>(params,
                                                *plan,
                                                {inputs.transposed, inputs.row_stride()},
                                                workspace + transposed_floats(params),
                                                stream);
    }
  } else if (std::holds_alternative<HopperSmallTiles>(path.tile)) {
    return launch_hopper_small_backward<kArithmetic>(params, path.split, stream);
  } else if (const auto* plan = std::get_if<GradientPlan>(&path.tile)) {
    return launch_backward_wgmma<kArithmetic>(params, *plan, {}, workspace, stream);
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
  const bool by_wgmma = path && std::holds_alternative<GradientPlan>(path->tile);
  CellGradients gradients = empty_gradients(
      sizes,
      [&](at::IntArrayRef shape) { return device.empty(shape, input.scalar_type()); },
      output_mask,
      /*with_gates=*/!few_rows && !by_wgmma);
  const cudaStream_t stream = device.stream();
  if (sizes.batch * sizes.state_size == 0 || !gradients.any_wanted()) {
    // Sums over an empty batch.
    finish_gradients(gradients, input, weights, old_h);
    return gradients.results();
  }

  const CellRows rows(arguments);
  std::optional<PackedOperands> packed;
  BackwardProblem products = products_params(gradients, rows, sizes);
  if (by_wgmma && (products.d_old_h != nullptr || products.d_input != nullptr ||
                   products.d_weights != nullptr)) {
    // Rows that TMA can describe.
    products.d_gates_stride =
        packed_stride(products.d_gates_stride, static_cast<int>(input.element_size()));
    gradients.gates = device.empty({sizes.batch, products.d_gates_stride}, input.scalar_type());
    products.d_gates = data_of(gradients.gates);
    check_launch(packed.emplace(products, input.scalar_type(), device).launch(stream));
  }
  const Tensor workspace = path ? workspace_of(products, *path, device) : Tensor();
  auto* const floats = static_cast<float*>(data_of(workspace));
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, input.scalar_type(), "lltm::backward", [&] {
        auto params = cell_params<scalar_t>(gradients, arguments, rows, sizes);
        params.d_gates_stride = products.d_gates_stride;
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
        } else if (by_wgmma && path->arithmetic == Arithmetic::kTf32) {
          params.inputs = inputs_in_order(products, floats);
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
