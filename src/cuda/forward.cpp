// lltm::forward on CUDA.
#include "../checks.h"
#include "../dispatcher_kernel.h"
#include "../products.h"
#include "kernels/forward_kernels.h"
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

struct Outputs {
  Tensor new_h, new_cell, gates;
};

// Copies what TMA cannot describe to rows that it can, and lets the problem have these. The memory
// has to live until the forward is launched.
Tensor pack(ForwardProblem& problem, const ForwardPlan& plan, const Device& device) {
  const int size = element_size(*plan.arithmetic);
  PackParams params;
  params.element_size = size;
  int64_t bytes = 0;
  // Behind `shift` columns that nobody reads.
  const auto add =
      [&](bool packs, Matrix& matrix, int64_t rows, int64_t columns, int lead, int64_t shift) {
        if (packs) {
          const int64_t stride = packed_stride(shift + lead + columns, size);
          // An offset for the time being.
          const auto* const to = reinterpret_cast<const void*>(bytes + shift * size);
          params.add({matrix, rows, columns, {to, stride}, lead});
          bytes += rows * stride * size;
        }
      };
  problem.input_lead = plan.input_lead;
  add(plan.packs_input,
      problem.input,
      problem.batch,
      problem.input_features,
      static_cast<int>(plan.input_lead),
      plan.input_shift);
  add(plan.packs_old_h, problem.old_h, problem.batch, problem.state_size, 0, 0);
  add(plan.packs_weights,
      problem.weights,
      3 * problem.state_size,
      problem.state_size + problem.input_features,
      0,
      0);
  Tensor memory = device.empty({bytes}, at::kByte);
  auto* const base = static_cast<char*>(memory.mutable_data_ptr());
  for (int i = 0; i < params.count; ++i) {
    Matrix& to = params.parts[i].to;
    to.data = base + reinterpret_cast<intptr_t>(to.data);
  }
  int next = 0;
  for (const auto& [packs, matrix] : {std::pair{plan.packs_input, &problem.input},
                                      std::pair{plan.packs_old_h, &problem.old_h},
                                      std::pair{plan.packs_weights, &problem.weights}}) {
    if (packs) {
      *matrix = params.parts[next++].to;
    }
  }
  check_launch(launch_pack(params, device.stream()));
  return memory;
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

void forward_by_plan(const Outputs& outputs,
                     const ForwardArguments& arguments,
                     const CellSizes<int64_t>& sizes,
                     const Device& device) {
  const std::optional<Arithmetic> arithmetic = arithmetic_of(arguments.input.scalar_type());
  if (!arithmetic) {
    selection();  // an unknown one is an error of every dtype
    forward_by_library(outputs, arguments, sizes, device.stream());
    return;
  }
  const Rows input(arguments.input), weights(arguments.weights), old_h(arguments.old_h),
      old_cell(arguments.old_cell);
  const Tensor bias = is_given(arguments.bias) ? arguments.bias->contiguous() : Tensor();
  ForwardProblem problem{
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
  DeviceFacts facts;
  check_launch(device_facts(device.properties(), &facts));
  const ForwardPlan plan = plan_forward(facts, arithmetic, problem);
  if (plan.by_library()) {
    forward_by_library(outputs, arguments, sizes, device.stream());
    return;
  }
  problem.input_shift = plan.input_shift;
  const Tensor packed = plan.packs() ? pack(problem, plan, device) : Tensor();
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
  m.impl("forward", dispatcher_kernel<forward, lltm::forward>());
}

}  // namespace lltm::cuda
