// lltm::forward on the CPU.
#include "../checks.h"
#include "../dispatcher_kernel.h"
#include "../optional_tensor.h"
#include "../products.h"
#include "cell_run.h"
#include "choice.h"

#include <ATen/Dispatch.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace lltm::cpu {
namespace {

using at::Tensor;

/// Computes gates, new_h and new_cell with this library's kernels.
void cell_out(const Tensor& new_h,
              const Tensor& new_cell,
              const Tensor& gates,
              const ForwardArguments& arguments) {
  const auto& [input, weights, bias, old_h, old_cell] = arguments;
  const Tensor input_ = with_contiguous_rows(input);
  const Tensor weights_ = with_contiguous_rows(weights);
  const Tensor old_h_ = with_contiguous_rows(old_h);
  const Tensor bias_ = contiguous_or_undefined(bias);
  const Tensor old_cell_ = old_cell.contiguous();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, input.scalar_type(), "lltm::forward", [&] {
        run_cell(CellParams<scalar_t>{.states = {.batch = input_.size(0),
                                                 .state_size = old_h_.size(1),
                                                 .input_features = input_.size(1),
                                                 .old_h = old_h_.const_data_ptr<scalar_t>(),
                                                 .old_h_stride = old_h_.stride(0),
                                                 .input = input_.const_data_ptr<scalar_t>(),
                                                 .input_stride = input_.stride(0)},
                                      .weights = weights_.const_data_ptr<scalar_t>(),
                                      .weights_stride = weights_.stride(0),
                                      .bias = data_or_null<scalar_t>(bias_),
                                      .old_cell = old_cell_.const_data_ptr<scalar_t>(),
                                      .gates = gates.mutable_data_ptr<scalar_t>(),
                                      .new_h = new_h.mutable_data_ptr<scalar_t>(),
                                      .new_cell = new_cell.mutable_data_ptr<scalar_t>()});
      });
}

std::tuple<Tensor, Tensor, Tensor> forward(const ForwardArguments& arguments) {
  const auto [batch, input_features, state_size] = check<int64_t>(arguments);
  const auto& [input, weights, bias, old_h, old_cell] = arguments;

  const auto empty = [&, batch = batch](int64_t columns) -> Tensor {
    return at::detail::empty_cpu({batch, columns}, input.scalar_type());
  };
  Tensor new_h = empty(state_size), new_cell = empty(state_size), gates = empty(3 * state_size);
  if (new_h.numel() == 0) {
    return {new_h, new_cell, gates};
  }

  if (has_own_products(input.scalar_type(), Pass::kForward)) {
    cell_out(new_h, new_cell, gates, arguments);
    return {new_h, new_cell, gates};
  }

  pre_activations_out(gates, input, weights, bias, old_h);

  const Tensor old_cell_ = old_cell.contiguous();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, input.scalar_type(), "lltm::forward", [&] {
        const ForwardParams<scalar_t> params{state_size,
                                             gates.const_data_ptr<scalar_t>(),
                                             old_cell_.const_data_ptr<scalar_t>(),
                                             new_h.mutable_data_ptr<scalar_t>(),
                                             new_cell.mutable_data_ptr<scalar_t>()};
        const auto& pointwise = pointwise_kernels<scalar_t>();
        for_each_row(batch, state_size, [&](int64_t begin, int64_t end) {
          pointwise.forward(params, begin, end);
        });
      });
  return {new_h, new_cell, gates};
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CPU, m) {
  m.impl("forward", dispatcher_kernel<forward, lltm::forward>());
}

}  // namespace lltm::cpu
