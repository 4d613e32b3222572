// lltm::forward on CUDA.
#include "../cell/products.h"
#include "../dispatch/optional_tensor.h"
#include "../operators/checks.h"
#include "../operators/operators.h"
#include "kernels/forward/kernels.h"
#include "launch_forward.h"
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

struct Outputs {
  Tensor new_h, new_cell, gates;
};

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

void forward_by_plan(const Outputs& outputs,
                     const ForwardArguments& arguments,
                     const CellSizes<int64_t>& sizes,
                     const Device& device) {
  const std::optional<Arithmetic> arithmetic =
      arithmetic_of(arguments.input.scalar_type(), CellType::kLltm);
  if (!arithmetic) {
    selection();  // an unknown selection is an error for every dtype
    forward_by_library(outputs, arguments, sizes, device.stream());
    return;
  }
  const Rows input(arguments.input), weights(arguments.weights), old_h(arguments.old_h),
      old_cell(arguments.old_cell);
  const Tensor bias = contiguous_or_undefined(arguments.bias);
  ForwardProblem problem{
      .batch = sizes.batch,
      .input_features = sizes.input_features,
      .state_size = sizes.state_size,
      .input = input.matrix(),
      .weights = weights.matrix(),
      .weights_input = weights.matrix().from(sizes.state_size,
                                             static_cast<int>(arguments.weights.element_size())),
      .bias = bias.defined() ? bias.const_data_ptr() : nullptr,
      .old_h = old_h.matrix(),
      .old_cell = old_cell.matrix(),
      .new_h = outputs.new_h.mutable_data_ptr(),
      .new_cell = outputs.new_cell.mutable_data_ptr(),
      .gates = outputs.gates.mutable_data_ptr(),
  };
  const ForwardPlan plan = plan_forward(device.facts(), *arithmetic, problem);
  if (plan.by_library()) {
    forward_by_library(outputs, arguments, sizes, device.stream());
    return;
  }
  const Tensor packed = pack(problem, plan, device);
  check_launch(launch_forward(plan, problem, device.stream()));
}

std::tuple<Tensor, Tensor, Tensor> forward(const ForwardArguments& arguments) {
  const auto sizes = check<int64_t>(arguments);
  const Device device(arguments.input);
  const auto empty = [&](int64_t columns) {
    return device.empty({sizes.batch, columns}, arguments.input.scalar_type());
  };
  Outputs outputs{empty(sizes.state_size), empty(sizes.state_size), empty(3 * sizes.state_size)};
  if (outputs.new_h.numel() > 0) {
    forward_by_plan(outputs, arguments, sizes, device);
  }
  return {std::move(outputs.new_h), std::move(outputs.new_cell), std::move(outputs.gates)};
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CUDA, m) {
  op::Forward::implement<forward>(m);
}

}  // namespace lltm::cuda
