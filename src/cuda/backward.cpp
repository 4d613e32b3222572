// lltm::backward on CUDA.
#include "../dispatch/optional_tensor.h"
#include "../operators/checks.h"
#include "../operators/gradients.h"
#include "../operators/operators.h"
#include "kernels/backward/kernels.h"
#include "packed_rows.h"
#include "plan/plan.h"
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

void* data_of(const Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr() : nullptr;
}

template <typename scalar_t>
GateGradientsParams<scalar_t> cell_params(const CellGradients& gradients,
                                          const BackwardArguments& arguments,
                                          const Tensor& gates,
                                          const Tensor& new_cell) {
  GateGradientsParams<scalar_t> params{};
  params.batch = new_cell.size(0);
  params.state_size = new_cell.size(1);
  params.grad_h = steps_of<scalar_t>(arguments.grad_h);
  params.grad_cell = steps_of<scalar_t>(arguments.grad_cell);
  params.gates = gates.const_data_ptr<scalar_t>();
  params.new_cell = new_cell.const_data_ptr<scalar_t>();
  params.d_gates = mutable_data_or_null<scalar_t>(gradients.gates);
  params.d_bias = mutable_data_or_null<scalar_t>(gradients.bias);
  params.d_old_cell = mutable_data_or_null<scalar_t>(gradients.old_cell);
  return params;
}

// Computes d_gates, d_old_cell and d_bias. If `later` is not null, it receives the parts of d_bias
// instead. The returned memory must live until these are added.
template <typename scalar_t>
Tensor gate_gradients(GateGradientsParams<scalar_t> params,
                      BiasParts* later,
                      const Device& device,
                      cudaStream_t stream) {
  Tensor workspace;
  params.sums_bias = later == nullptr;
  if (const int64_t parts = bias_parts(params); parts > 1 && params.d_bias != nullptr) {
    workspace = device.empty({parts, 3 * params.state_size},
                             c10::CppTypeToScalarType<accumulate_t<scalar_t>>::value);
    params.workspace = workspace.mutable_data_ptr();
    if (later != nullptr) {
      *later = {static_cast<const float*>(params.workspace), parts, params.d_bias};
    }
  }
  check_launch(launch_gate_gradients(params, stream));
  return workspace;
}

cudaError_t launch_products(const BackwardProblem& params,
                            Arithmetic arithmetic,
                            Group group,
                            const GradientPlan& plan,
                            float* workspace,
                            cudaStream_t stream) {
  return with_arithmetic(arithmetic, [&]<Arithmetic kArithmetic>() {
    if (group == Group::kHopper) {
      return launch_backward_wgmma<kArithmetic>(params, plan, workspace, stream);
    }
    return launch_backward_tiles<kArithmetic>(params, plan, stream);
  });
}

OptionalGradients backward(const BackwardArguments& arguments, std::array<bool, 5> output_mask) {
  const auto sizes = check<int64_t>(arguments);
  const Tensor &input = arguments.input, &weights = arguments.weights, &old_h = arguments.old_h;
  const Device device(input);

  const DeviceFacts facts = device.facts();
  const std::optional<Arithmetic> arithmetic = arithmetic_of(input.scalar_type());
  const auto [candidate, estimate] =
      plan_backward(facts,
                    {.arithmetic = arithmetic,
                     .batch = sizes.batch,
                     .input_features = sizes.input_features,
                     .state_size = sizes.state_size,
                     .vector_rows = is_describable(input) && is_describable(old_h) &&
                                    are_describable_halves(weights)});
  const GradientPlan& plan = estimate.plan;
  const Group group = candidate->group;
  const bool few_rows = group == Group::kFewRows;
  const bool by_library = group == Group::kLibrary;
  const bool by_wgmma = group == Group::kHopper;
  const bool in_tiles = by_wgmma || group == Group::kTiles;
  CellGradients gradients = empty_gradients(
      sizes,
      [&](at::IntArrayRef shape) { return device.empty(shape, input.scalar_type()); },
      output_mask,
      /*with_gates=*/by_library);
  const cudaStream_t stream = device.stream();
  if (sizes.batch * sizes.state_size == 0 || !gradients.any_wanted()) {
    // The gradients of an empty batch are zeros.
    finish_gradients(gradients, input, weights, old_h);
    return gradients.results();
  }

  const Tensor gates = arguments.gates.contiguous(), new_cell = arguments.new_cell.contiguous();
  const Rows input_rows(input), weights_rows(weights), old_h_rows(old_h);
  Tensor packed, workspace;
  BackwardProblem products{
      .batch = sizes.batch,
      .input_features = sizes.input_features,
      .state_size = sizes.state_size,
      .d_gates = data_of(gradients.gates),
      .d_gates_stride = 3 * sizes.state_size,
      .input = input_rows.matrix(),
      .weights = weights_rows.matrix(),
      .weights_input =
          weights_rows.matrix().from(sizes.state_size, static_cast<int>(input.element_size())),
      .old_h = old_h_rows.matrix(),
      .d_old_h = data_of(gradients.old_h),
      .d_input = data_of(gradients.input),
      .d_weights = data_of(gradients.weights),
  };
  const bool any_product =
      products.d_old_h != nullptr || products.d_input != nullptr || products.d_weights != nullptr;
  if (in_tiles && any_product) {
    // d_gates need rows that TMA can describe, too.
    products.d_gates_stride =
        packed_stride(products.d_gates_stride, static_cast<int>(input.element_size()));
    gradients.gates = device.empty({sizes.batch, products.d_gates_stride}, input.scalar_type());
    products.d_gates = data_of(gradients.gates);
    packed = pack(products, *arithmetic, by_wgmma, device);
    const int64_t floats = by_wgmma ? workspace_floats(*arithmetic, products, plan) : 0;
    if (floats > 0) {
      workspace = device.empty({floats}, at::kFloat);
    }
  }
  auto* const floats = mutable_data_or_null<float>(workspace);
  Tensor parts_of_bias;
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, input.scalar_type(), "lltm::backward", [&] {
        auto params = cell_params<scalar_t>(gradients, arguments, gates, new_cell);
        params.d_gates_stride = products.d_gates_stride;
        params.blocks_at_once = 2 * facts.multiprocessors;
        params.blocks_in_clusters = 2 * facts.resident_in_clusters_of(kLargestCluster);
        if constexpr (sizeof(scalar_t) < 8) {
          if (few_rows) {
            check_launch(launch_backward_few_rows(params, products, plan.ranks, stream));
            return;
          }
        }
        // In 16 bits and by wgmma this helps what follows: blocks that each fill a multiprocessor
        // cannot crowd onto free ones.
        params.starts_next = !by_library && (sizeof(scalar_t) == 2 || by_wgmma);
        if (by_wgmma && arithmetic == Arithmetic::kTf32) {
          params.inputs = transposed_inputs(products, floats, !plan.has_large_tiles());
        }
        // Even without products, so that d_bias has the same bits with them.
        params.bias_in_parts = by_wgmma;
        parts_of_bias = gate_gradients(
            params, params.bias_in_parts && any_product ? &products.bias : nullptr, device, stream);
      });
  if (by_library) {
    CellGradients all_but_bias = gradients;
    all_but_bias.bias.reset();
    finish_gradients(all_but_bias, input, weights, old_h);
  } else if (any_product && in_tiles) {
    check_launch(launch_products(products, *arithmetic, group, plan, floats, stream));
  }
  return gradients.results();
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CUDA, m) {
  m.impl("backward", op::Backward::kernel<backward>());
}

}  // namespace lltm::cuda
