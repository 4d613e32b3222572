#include "input_product.h"

#include "../cell/column_runs.h"
#include "../cell/with_cell.h"
#include "../dispatch/optional_tensor.h"
#include "kernels/recurrence/recurrence.h"
#include "kernels/sequence/kernels.h"
#include "library/products.h"
#include "packed_rows.h"
#include "plan/plan.h"
#include "runtime/launch_check.h"
#include "runtime/rows.h"
#include "sequence.h"

#include <ATen/ops/zeros.h>

namespace lltm::cuda {
namespace {

using at::Tensor;

void compute_by_library(const Tensor& z_x,
                        const Tensor& input,
                        const RecurrentArguments& arguments,
                        Arithmetic arithmetic) {
  const Tensor out = z_x.flatten(0, 1);
  const Tensor rows = input.reshape({out.size(0), input.size(2)});
  // Zeros in place of an absent bias: another product would round differently.
  biased_product_out(
      out,
      is_given(arguments.bias) ? *arguments.bias : at::zeros({out.size(1)}, out.options()),
      rows,
      arguments.weight_ih.t(),
      arithmetic);
}

template <typename scalar_t>
InputProductProblem<scalar_t> small_problem(const Tensor& z_x,
                                            const Tensor& input,
                                            const RecurrentArguments& arguments) {
  return {.steps = input.size(0),
          .rows = input.size(1),
          .input_features = input.size(2),
          .columns = z_x.size(2),
          .input = steps_of<scalar_t>(input),
          .weights = recurrent_weights<scalar_t>(arguments.weight_ih),
          .bias = data_or_null<scalar_t>(arguments.bias),
          .bias_stride = bias_stride(arguments.bias),
          .z_x = z_x.mutable_data_ptr<scalar_t>()};
}

void compute_by_wgmma(const Tensor& z_x,
                      const Tensor& input,
                      const RecurrentArguments& arguments,
                      const InputProductPlan& plan,
                      const Device& device,
                      const DeviceFacts& facts) {
  const Tensor rows = describable_rows(input, device);
  const Tensor weights = describable_rows(arguments.weight_ih, device);
  const Float32InputProduct problem{.rows = rows.size(0),
                                    .input_features = rows.size(1),
                                    .columns = z_x.size(2),
                                    .input = rows_of(rows),
                                    .weights = rows_of(weights),
                                    .bias = data_or_null<float>(arguments.bias),
                                    .bias_stride = bias_stride(arguments.bias),
                                    .z_x = z_x.mutable_data_ptr<float>()};
  check_launch(launch_input_product_wgmma_float32(
      problem, plan.tile_rows, facts.multiprocessors, device.stream()));
}

/// As lltm::saved_bias, in one launch, which the next kernel overlaps.
Tensor saved_bias(const RecurrentArguments& arguments, const Device& device) {
  const int64_t state_size = arguments.weight_hh.size(1);
  const auto dtype = arguments.input.scalar_type();
  const Tensor saved = device.empty({arguments.cell.saved * state_size}, dtype);
  with_scalar(dtype, [&]<typename scalar_t>() {
    const SavedBiasParams<scalar_t> params{.state_size = state_size,
                                           .bias = data_or_null<scalar_t>(arguments.bias),
                                           .bias_hh = data_or_null<scalar_t>(arguments.bias_hh),
                                           .bias_stride = bias_stride(arguments.bias),
                                           .bias_hh_stride = bias_stride(arguments.bias_hh),
                                           .saved = saved.mutable_data_ptr<scalar_t>()};
    check_launch(with_cell(arguments.cell.type, [&]<typename Cell>() {
      if constexpr (!Cell::kAdds) {
        return launch_saved_bias<Cell>(params, device.stream());
      }
      return cudaErrorInvalidValue;
    }));
  });
  return saved;
}

}  // namespace

Biases::Biases(const RecurrentArguments& arguments, const Device& device)
    : of_inputs(arguments.bias) {
  const CellDescriptor& cell = arguments.cell;
  if (!cell.adds) {
    of_saved = saved_bias(arguments, device);
    of_inputs = side_of(*of_saved, cell.of_input, arguments.weight_hh.size(1));
  }
}

bool compute_input_product(const Tensor& z_x,
                           const Tensor& input,
                           const RecurrentArguments& arguments,
                           Arithmetic arithmetic,
                           const Device& device) {
  const auto dtype = input.scalar_type();
  const DeviceFacts& facts = device.facts();
  const InputProductPlan plan = plan_input_product({.arithmetic = arithmetic,
                                                    .batch = input.size(0) * input.size(1),
                                                    .input_features = input.size(2),
                                                    .state_size = arguments.weight_hh.size(1),
                                                    .columns = z_x.size(2)},
                                                   facts);
  switch (plan.kernel) {
    case InputProductKernel::kLibrary:
      compute_by_library(z_x, input, arguments, arithmetic);
      break;
    case InputProductKernel::kSmall:
      with_scalar(dtype, [&]<typename scalar_t>() {
        check_launch(
            launch_input_product(small_problem<scalar_t>(z_x, input, arguments), device.stream()));
      });
      break;
    case InputProductKernel::kWgmmaFloat32:
      compute_by_wgmma(z_x, input, arguments, plan, device, facts);
      break;
  }
  return plan.is_own();
}

int64_t copied_input_columns(const Tensor& input) {
  const bool is_copied =
      !input.is_contiguous() ||
      (input.scalar_type() == at::kFloat && input.size(2) % 4 == 0 && !is_describable(input));
  return is_copied ? input.size(2) : 0;
}

}  // namespace lltm::cuda
