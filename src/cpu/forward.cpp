// lltm::forward on the CPU.
#include "../checks.h"
#include "../products.h"
#include "grain.h"
#include "kernels.h"
#include "products.h"

#include <ATen/Dispatch.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace lltm::cpu {
namespace {

using at::Tensor;

std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& input,
                                           const Tensor& weights,
                                           const std::optional<Tensor>& bias,
                                           const Tensor& old_h,
                                           const Tensor& old_cell) {
  const auto [batch, input_features, state_size] =
      check<int64_t>(ForwardArguments{input, weights, bias, old_h, old_cell});

  const auto empty = [&, batch = batch](int64_t columns) -> Tensor {
    return at::detail::empty_cpu({batch, columns}, input.scalar_type());
  };
  Tensor new_h = empty(state_size), new_cell = empty(state_size), gates = empty(3 * state_size);
  if (new_h.numel() == 0) {
    return {new_h, new_cell, gates};
  }

  if (has_own_products(input.scalar_type())) {
    cell_out(new_h, new_cell, gates, input, weights, bias, old_h, old_cell);
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
        const auto& pointwise = std::get<PointwiseKernels<scalar_t>>(kernels().pointwise);
        at::parallel_for(0, batch, rows_per_task(state_size), [&](int64_t begin, int64_t end) {
          pointwise.forward(params, begin, end);
        });
      });
  return {new_h, new_cell, gates};
}

}  // namespace

TORCH_LIBRARY_IMPL(lltm, CPU, m) {
  m.impl("forward", TORCH_FN(forward));
}

}  // namespace lltm::cpu
