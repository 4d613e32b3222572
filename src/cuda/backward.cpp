// lltm::backward on CUDA.
#include "../dispatch/optional_tensor.h"
#include "../operators/checks.h"
#include "../operators/gradients.h"
#include "../operators/operators.h"
#include "gate_gradients.h"
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

/// The backward of a batch that is not empty, by the kernels of a choice.
class CellBackward {
 public:
  CellBackward(const BackwardArguments& arguments,
               const Choice& choice,
               const Device& device,
               const DeviceFacts& facts,
               CellGradients& gradients)
      : arguments_(arguments),
        group_(choice.candidate->group),
        plan_(choice.estimate.plan),
        device_(device),
        facts_(facts),
        gradients_(gradients),
        gates_(arguments.gates.contiguous()),
        new_cell_(arguments.new_cell.contiguous()),
        input_(arguments.input),
        weights_(arguments.weights),
        old_h_(arguments.old_h) {}

  void run() {
    switch (group_) {
      case Group::kFewRows:
        return run_few_rows();
      case Group::kLibrary:
        return run_library();
      default:
        return run_tiles();
    }
  }

 private:
  at::ScalarType dtype() const { return arguments_.input.scalar_type(); }
  int element_size() const { return static_cast<int>(arguments_.input.element_size()); }
  int64_t batch() const { return new_cell_.size(0); }
  int64_t state_size() const { return new_cell_.size(1); }

  BackwardProblem products() const {
    const Matrix weights = weights_.matrix();
    const int64_t width = state_size() + arguments_.input.size(1);
    return {
        .batch = batch(),
        .input_features = arguments_.input.size(1),
        .state_size = state_size(),
        .gates = 3 * state_size(),
        .d_gates = data_of(gradients_.gates),
        .d_gates_stride = 3 * state_size(),
        .input = input_.matrix(),
        .weights = weights,
        .weights_input = weights.from(state_size(), element_size()),
        .old_h = old_h_.matrix(),
        .d_old_h = data_of(gradients_.old_h),
        .d_input = data_of(gradients_.input),
        .d_weights = blocks_of(data_of(gradients_.weights), state_size(), width, element_size()),
    };
  }

  /// What the kernels of d_gates and of few rows have in common.
  template <typename scalar_t>
  GateGradientsParams<scalar_t> gate_params(int64_t d_gates_stride) const {
    GateGradientsParams<scalar_t> params{};
    params.batch = batch();
    params.state_size = state_size();
    params.grad_h = steps_of<scalar_t>(arguments_.grad_h);
    params.grad_cell = steps_of<scalar_t>(arguments_.grad_cell);
    params.gates = gates_.const_data_ptr<scalar_t>();
    params.new_cell = new_cell_.const_data_ptr<scalar_t>();
    params.d_gates = mutable_data_or_null<scalar_t>(gradients_.gates);
    params.d_gates_stride = d_gates_stride;
    params.d_bias = mutable_data_or_null<scalar_t>(gradients_.bias);
    params.d_old_cell = mutable_data_or_null<scalar_t>(gradients_.old_cell);
    params.blocks_at_once = 2 * facts_.multiprocessors;
    params.blocks_in_clusters = 2 * facts_.resident_in_clusters_of(kLargestCluster);
    return params;
  }

  void run_few_rows() const {
    const BackwardProblem problem = products();
    with_scalar(dtype(), [&]<typename scalar_t>() {
      check_launch(launch_backward_few_rows<cell::Lltm>(
          gate_params<scalar_t>(problem.d_gates_stride), problem, plan_.ranks, device_.stream()));
    });
  }

  void run_library() const {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype(), "lltm::backward", [&] {
      compute_gate_gradients<cell::Lltm>(gate_params<scalar_t>(3 * state_size()), nullptr, device_);
    });
    CellGradients all_but_bias = gradients_;
    all_but_bias.bias.reset();
    finish_gradients(all_but_bias, arguments_.input, arguments_.weights, arguments_.old_h);
  }

  /// d_gates by one kernel, then the products by tiles of wgmma or mma.sync.
  void run_tiles() {
    const Arithmetic arithmetic = *arithmetic_of(dtype(), CellType::kLltm);
    const bool by_wgmma = group_ == Group::kHopper;
    BackwardProblem problem = products();
    const bool any_product =
        problem.d_old_h != nullptr || problem.d_input != nullptr || problem.d_weights.any_wanted();
    Tensor packed, workspace;
    if (any_product) {
      // d_gates need rows that TMA can describe, too.
      problem.d_gates_stride = packed_stride(problem.d_gates_stride, element_size());
      gradients_.gates = device_.empty({batch(), problem.d_gates_stride}, dtype());
      problem.d_gates = data_of(gradients_.gates);
      packed = pack(problem, arithmetic, by_wgmma, device_);
      const int64_t floats = by_wgmma ? workspace_floats(arithmetic, problem, plan_) : 0;
      workspace = floats > 0 ? device_.empty({floats}, at::kFloat) : Tensor();
    }
    auto* const floats = mutable_data_or_null<float>(workspace);
    Tensor parts_of_bias;
    with_scalar(dtype(), [&]<typename scalar_t>() {
      auto params = gate_params<scalar_t>(problem.d_gates_stride);
      // In 16 bits and by wgmma this helps what follows: blocks that each fill a multiprocessor
      // cannot crowd onto free ones.
      params.starts_next = sizeof(scalar_t) == 2 || by_wgmma;
      if (by_wgmma && arithmetic == Arithmetic::kTf32) {
        params.inputs = transposed_inputs(problem, floats, !plan_.has_large_tiles());
      }
      // Even without products, so that d_bias has the same bits with them.
      params.bias_in_parts = by_wgmma;
      parts_of_bias = compute_gate_gradients<cell::Lltm>(
          params, by_wgmma && any_product ? &problem.bias : nullptr, device_);
    });
    if (any_product) {
      check_launch(with_arithmetic(arithmetic, [&]<Arithmetic kArithmetic>() {
        return by_wgmma
                   ? launch_backward_wgmma<kArithmetic>(problem, plan_, floats, device_.stream())
                   : launch_backward_tiles<kArithmetic>(problem, plan_, device_.stream());
      }));
    }
  }

  const BackwardArguments& arguments_;
  const Group group_;
  const GradientPlan& plan_;
  const Device& device_;
  const DeviceFacts& facts_;
  CellGradients& gradients_;
  const Tensor gates_, new_cell_;
  const Rows input_, weights_, old_h_;
};

OptionalGradients<5> backward(const BackwardArguments& arguments, std::array<bool, 5> output_mask) {
  const auto sizes = check<int64_t>(arguments);
  const Tensor &input = arguments.input, &weights = arguments.weights, &old_h = arguments.old_h;
  const Device device(input);
  const DeviceFacts facts = device.facts();
  const Choice choice =
      plan_backward(facts,
                    {.work = Work::kBackward,
                     .arithmetic = arithmetic_of(input.scalar_type(), CellType::kLltm),
                     .batch = sizes.batch,
                     .input_features = sizes.input_features,
                     .state_size = sizes.state_size,
                     .vector_rows = is_describable(input) && is_describable(old_h) &&
                                    are_describable_halves(weights)});
  CellGradients gradients = empty_gradients(
      sizes,
      [&](at::IntArrayRef shape) { return device.empty(shape, input.scalar_type()); },
      output_mask,
      /*with_gates=*/choice.candidate->group == Group::kLibrary);
  if (sizes.batch * sizes.state_size == 0 || !gradients.any_wanted()) {
    // The gradients of an empty batch are zeros.
    finish_gradients(gradients, input, weights, old_h);
  } else {
    CellBackward(arguments, choice, device, facts, gradients).run();
  }
  return gradients.results();
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CUDA, m) {
  op::Backward::implement<backward>(m);
}

}  // namespace lltm::cuda
