#include "cell.h"

#include "../cell/products.h"
#include "../dispatch/optional_tensor.h"
#include "kernel_arguments.h"
#include "parallel.h"
#include "plan.h"
#include "scratch.h"

#include <ATen/Dispatch.h>

#include <optional>

namespace lltm::cpu {
namespace {

using at::Tensor;

/// Packs the panels of `params` and computes gates, new_h and new_cell.
template <typename scalar_t>
void run_cell(const CellDescriptor& cell, CellParams<scalar_t> params, int64_t gates) {
  const auto& kernels = product_kernels<scalar_t>();
  const auto& steps = sequence_kernels<scalar_t>(cell);
  const auto& states = params.h_and_input;
  const int64_t work =
      multiplications(states.batch, gates, states.state_size + states.input_features);
  std::optional<Scratch<accumulate_t<scalar_t>>> panels;
  params.panel_vectors = kernels.max_panel_vectors;
  if (kernels.cell_needs_panels(states.batch)) {
    const int64_t size = kernels.h_and_input_panels_size(states);
    panels.emplace(size);
    params.panels = panels->data();
    // Narrower panels make more tasks.
    const int64_t wanted = work < kShortMultiplications ? 1 : at::get_num_threads();
    while (params.panel_vectors > 1 && kernels.cell_tasks(params) < wanted) {
      --params.panel_vectors;
    }
    // The same number of panels, but of equal width.
    const int64_t vectors = ceil_div(states.batch, kernels.lanes);
    const int64_t panel_count = ceil_div(vectors, params.panel_vectors);
    params.panel_vectors = static_cast<int>(ceil_div(vectors, panel_count));
    for_each_task(kernels.pack_tasks(states), size, kShortCopies, [&](int64_t begin, int64_t end) {
      kernels.pack_h_and_input(states, params.panel_vectors, panels->data(), begin, end);
    });
  }
  for_each_task(
      kernels.cell_tasks(params), work, kShortMultiplications, [&](int64_t begin, int64_t end) {
        steps.cell(params, begin, end);
      });
}

/// The columns of a matrix of weights from first_column on.
struct Columns {
  const Tensor& weights;  // with contiguous rows
  int64_t first_column = 0;

  template <typename scalar_t>
  WeightBlock<scalar_t> block() const {
    return {weights.const_data_ptr<scalar_t>() + first_column, weights.stride(0)};
  }
};

/// The arguments of a step of any cell.
struct CellArguments {
  const CellDescriptor& cell;
  const Tensor& input;
  Columns weight_ih;
  Columns weight_hh;
  const std::optional<Tensor>& bias;
  const std::optional<Tensor>& bias_hh;
  const Tensor& old_h;
  const Tensor& old_cell;
};

template <typename scalar_t>
CellsOut<scalar_t> new_cells(const CellOutputs& outputs) {
  CellsOut<scalar_t> cells = cells_out<scalar_t>(outputs.new_cell);
  if (outputs.rounded_cell.defined()) {
    cells.rounded = outputs.rounded_cell.mutable_data_ptr<scalar_t>();
  }
  return cells;
}

/// With this library's kernels.
void fused_cell_out(const CellOutputs& outputs,
                    const CellArguments& arguments,
                    const CellSizes<int64_t>& sizes) {
  const Tensor input = with_contiguous_rows(arguments.input);
  const Tensor old_h = with_contiguous_rows(arguments.old_h);
  const Tensor bias = contiguous_or_undefined(arguments.bias);
  const Tensor bias_hh = contiguous_or_undefined(arguments.bias_hh);
  const Tensor old_cell = arguments.old_cell.contiguous();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, input.scalar_type(), "lltm::forward", [&] {
        run_cell(arguments.cell,
                 CellParams<scalar_t>{.h_and_input = {.batch = sizes.batch,
                                                      .state_size = sizes.state_size,
                                                      .input_features = sizes.input_features,
                                                      .old_h = old_h.const_data_ptr<scalar_t>(),
                                                      .old_h_stride = old_h.stride(0),
                                                      .input = input.const_data_ptr<scalar_t>(),
                                                      .input_stride = input.stride(-2)},
                                      .weight_hh = arguments.weight_hh.block<scalar_t>(),
                                      .weight_ih = arguments.weight_ih.block<scalar_t>(),
                                      .bias = data_or_null<scalar_t>(bias),
                                      .bias_hh = data_or_null<scalar_t>(bias_hh),
                                      .old_cell = cells_in<scalar_t>(old_cell),
                                      .gates = outputs.gates.mutable_data_ptr<scalar_t>(),
                                      .new_h = outputs.new_h.mutable_data_ptr<scalar_t>(),
                                      .new_cell = new_cells<scalar_t>(outputs)},
                 sizes.gates);
      });
}

/// With ATen's product of the states and the weights.
template <typename scalar_t>
void library_cell_out(const CellOutputs& outputs,
                      const ForwardArguments& arguments,
                      const CellSizes<int64_t>& sizes) {
  const auto& [input, weights, bias, old_h, old_cell] = arguments;
  pre_activations_out(outputs.gates.view({sizes.batch, sizes.gates}),
                      input.dim() == 3 ? input.squeeze(0) : input,
                      weights,
                      bias,
                      old_h);
  const Tensor old_cell_ = old_cell.contiguous();
  const ForwardParams<scalar_t> params{.state_size = sizes.state_size,
                                       .gates = outputs.gates.const_data_ptr<scalar_t>(),
                                       .old_cell = cells_in<scalar_t>(old_cell_),
                                       .new_h = outputs.new_h.mutable_data_ptr<scalar_t>(),
                                       .new_cell = new_cells<scalar_t>(outputs)};
  const auto& pointwise = pointwise_kernels<scalar_t>(cell::kLltm);
  for_each_row(sizes.batch, sizes.state_size, [&](int64_t begin, int64_t end) {
    pointwise.forward(params, begin, end);
  });
}

}  // namespace

void cell_out(const CellOutputs& outputs,
              const ForwardArguments& arguments,
              const CellSizes<int64_t>& sizes) {
  const auto& [input, weights, bias, old_h, old_cell] = arguments;
  if (plan_cell(input.scalar_type(), Pass::kForward, sizes) == Path::kFused) {
    const Tensor rows = with_contiguous_rows(weights);
    fused_cell_out(outputs,
                   {.cell = cell::kLltm,
                    .input = input,
                    .weight_ih = {rows, /*first_column=*/sizes.state_size},
                    .weight_hh = {rows},
                    .bias = bias,
                    .bias_hh = kAbsent,
                    .old_h = old_h,
                    .old_cell = old_cell},
                   sizes);
    return;
  }
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, input.scalar_type(), "lltm::forward", [&] {
        library_cell_out<scalar_t>(outputs, arguments, sizes);
      });
}

void fused_step_out(const CellOutputs& outputs,
                    const RecurrentArguments& arguments,
                    const Tensor& input,
                    const Tensor& old_h,
                    const Tensor& old_cell,
                    const CellSizes<int64_t>& sizes) {
  const Tensor weight_ih = with_contiguous_rows(arguments.weight_ih);
  const Tensor weight_hh = with_contiguous_rows(arguments.weight_hh);
  fused_cell_out(outputs,
                 {.cell = arguments.cell,
                  .input = input,
                  .weight_ih = {weight_ih},
                  .weight_hh = {weight_hh},
                  .bias = arguments.bias,
                  .bias_hh = arguments.bias_hh,
                  .old_h = old_h,
                  .old_cell = old_cell},
                 sizes);
}

}  // namespace lltm::cpu
