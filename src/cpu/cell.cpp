#include "cell.h"

#include "../cell/products.h"
#include "../dispatch/optional_tensor.h"
#include "cell_run.h"
#include "plan.h"

#include <ATen/Dispatch.h>

namespace lltm::cpu {
namespace {

using at::Tensor;

/// With this library's kernels.
template <typename scalar_t>
void fused_cell_out(const CellOutputs& outputs, const ForwardArguments& arguments) {
  const Tensor input = with_contiguous_rows(arguments.input);
  const Tensor weights = with_contiguous_rows(arguments.weights);
  const Tensor old_h = with_contiguous_rows(arguments.old_h);
  const Tensor bias = contiguous_or_undefined(arguments.bias);
  const Tensor old_cell = arguments.old_cell.contiguous();
  run_cell(CellParams<scalar_t>{.states = {.batch = old_h.size(0),
                                           .state_size = old_h.size(1),
                                           .input_features = input.size(-1),
                                           .old_h = old_h.const_data_ptr<scalar_t>(),
                                           .old_h_stride = old_h.stride(0),
                                           .input = input.const_data_ptr<scalar_t>(),
                                           .input_stride = input.stride(-2)},
                                .weights = weights.const_data_ptr<scalar_t>(),
                                .weights_stride = weights.stride(0),
                                .bias = data_or_null<scalar_t>(bias),
                                .old_cell = old_cell.const_data_ptr<scalar_t>(),
                                .gates = outputs.gates.mutable_data_ptr<scalar_t>(),
                                .new_h = outputs.new_h.mutable_data_ptr<scalar_t>(),
                                .new_cell = outputs.new_cell.mutable_data_ptr<scalar_t>()});
}

/// With ATen's product of the states and the weights.
template <typename scalar_t>
void library_cell_out(const CellOutputs& outputs, const ForwardArguments& arguments) {
  const auto& [input, weights, bias, old_h, old_cell] = arguments;
  const int64_t batch = old_h.size(0), state_size = old_h.size(1);
  pre_activations_out(outputs.gates.view({batch, 3 * state_size}),
                      input.dim() == 3 ? input.squeeze(0) : input,
                      weights,
                      bias,
                      old_h);
  const Tensor old_cell_ = old_cell.contiguous();
  const ForwardParams<scalar_t> params{state_size,
                                       outputs.gates.const_data_ptr<scalar_t>(),
                                       old_cell_.const_data_ptr<scalar_t>(),
                                       outputs.new_h.mutable_data_ptr<scalar_t>(),
                                       outputs.new_cell.mutable_data_ptr<scalar_t>()};
  const auto& pointwise = pointwise_kernels<scalar_t>(CellType::kLltm);
  for_each_row(batch, state_size, [&](int64_t begin, int64_t end) {
    pointwise.forward(params, begin, end);
  });
}

}  // namespace

void cell_out(const CellOutputs& outputs, const ForwardArguments& arguments) {
  const auto dtype = arguments.input.scalar_type();
  const CellSizes<int64_t> sizes{.batch = arguments.old_h.size(0),
                                 .input_features = arguments.input.size(-1),
                                 .state_size = arguments.old_h.size(1)};
  const Path path = plan_cell(dtype, Pass::kForward, sizes);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "lltm::forward", [&] {
    path == Path::kFused ? fused_cell_out<scalar_t>(outputs, arguments)
                         : library_cell_out<scalar_t>(outputs, arguments);
  });
}

}  // namespace lltm::cpu
