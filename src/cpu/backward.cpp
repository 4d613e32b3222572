// lltm::backward on the CPU.
#include "../dispatch/optional_tensor.h"
#include "../operators/checks.h"
#include "../operators/gradients.h"
#include "../operators/operators.h"
#include "fused/gradient_products.h"
#include "kernel_arguments.h"
#include "parallel.h"
#include "plan.h"

#include <ATen/Dispatch.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace lltm::cpu {
namespace {

using at::Tensor;

OptionalGradients<5> backward(const BackwardArguments& arguments, std::array<bool, 5> output_mask) {
  const auto sizes = check<int64_t>(arguments);
  const auto& [grad_h, grad_cell, new_cell, gates, input, weights, bias, old_h] = arguments;

  const CellGradients gradients = empty_gradients(
      sizes,
      [&](at::IntArrayRef shape) { return at::detail::empty_cpu(shape, input.scalar_type()); },
      output_mask);

  if (sizes.batch * sizes.state_size > 0 && gradients.any_wanted()) {
    const Tensor grad_h_ = contiguous_or_undefined(grad_h);
    const Tensor grad_cell_ = contiguous_or_undefined(grad_cell);
    const Tensor gates_ = gates.contiguous();
    const Tensor new_cell_ = new_cell.contiguous();
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, input.scalar_type(), "lltm::backward", [&] {
          const BackwardParams<scalar_t> params{
              .state_size = sizes.state_size,
              .grad_h = data_or_null<scalar_t>(grad_h_),
              .grad_cell = data_or_null<scalar_t>(grad_cell_),
              .gates = gates_.const_data_ptr<scalar_t>(),
              .old_cell = nullptr,
              .new_cell = new_cell_.const_data_ptr<scalar_t>(),
              .d_gates = mutable_data_or_null<scalar_t>(gradients.gates),
              .d_old_cell = mutable_data_or_null<scalar_t>(gradients.old_cell)};
          const auto& pointwise = pointwise_kernels<scalar_t>(cell::kLltm);
          for_each_row(sizes.batch, sizes.state_size, [&](int64_t begin, int64_t end) {
            pointwise.backward(params, begin, end);
          });
        });
    if (plan_cell(input.scalar_type(), Pass::kBackward, sizes) == Path::kFused) {
      finish_fused_gradients(gradients, input, weights, old_h);
      return gradients.results();
    }
  }
  finish_gradients(gradients, input, weights, old_h);
  return gradients.results();
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CPU, m) {
  op::Backward::implement<backward>(m);
}

}  // namespace lltm::cpu
