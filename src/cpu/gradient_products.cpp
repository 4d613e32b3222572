#include "gradient_products.h"

#include "kernel_arguments.h"
#include "parallel.h"
#include "scratch.h"

#include <ATen/Dispatch.h>

#include <algorithm>

namespace lltm::cpu {
namespace {

using at::Tensor;

template <typename scalar_t>
void state_gradient_out(const Tensor& out,
                        const Tensor& d_gates,
                        const Tensor& weights,
                        int64_t first_column) {
  const auto& kernels = product_kernels<scalar_t>();
  StateGradientParams<scalar_t> params{.batch = d_gates.size(0),
                                       .gates = d_gates.size(1),
                                       .columns = out.size(1),
                                       .d_gates = d_gates.const_data_ptr<scalar_t>(),
                                       .weights = weights.const_data_ptr<scalar_t>() + first_column,
                                       .weights_stride = weights.stride(0),
                                       .out = out.mutable_data_ptr<scalar_t>(),
                                       .row_chunks = 1};
  // Panels of columns alone may be too few for the threads. A chunk copies its panel for itself,
  // which takes as long as some eight rows do: to give every thread a task it should have three
  // times as many rows, and to give it several, eight times.
  const int64_t panels = std::max<int64_t>(1, kernels.state_gradient_tasks(params));
  params.row_chunks =
      std::max({ceil_div(params.batch, kernels.max_rows_per_chunk),
                std::min<int64_t>(ceil_div(at::get_num_threads(), panels), params.batch / 24),
                std::min<int64_t>(ceil_div(wanted_tasks(), panels), params.batch / 64)});
  for_each_task(kernels.state_gradient_tasks(params),
                multiplications(params.batch, params.gates, params.columns),
                kShortMultiplications,
                [&](int64_t begin, int64_t end) { kernels.state_gradient(params, begin, end); });
}

template <typename scalar_t>
void weight_gradient_out(const Tensor& d_weights,
                         const Tensor& d_gates,
                         const Tensor& input,
                         const Tensor& old_h) {
  const auto& kernels = product_kernels<scalar_t>();
  WeightGradientParams<scalar_t> params{.states = state_params<scalar_t>(input, old_h),
                                        .d_gates = d_gates.const_data_ptr<scalar_t>(),
                                        .d_weights = d_weights.mutable_data_ptr<scalar_t>(),
                                        .panel_groups = 1,
                                        .panels = nullptr,
                                        .first_panel = 0};
  const int64_t panel_count = kernels.weight_panels(params.states);
  const int64_t tasks_of_group = kernels.weight_gradient_tasks(params);
  const int64_t groups_for_threads = ceil_div(wanted_tasks(), tasks_of_group);
  params.panel_groups = std::max({ceil_div(panel_count, kernels.max_panels_per_group),
                                  std::min(groups_for_threads, panel_count),
                                  int64_t{1}});
  // Group by group, as far as there is work for the threads: a few panels stay in the cache.
  const int64_t groups = std::min(groups_for_threads, params.panel_groups);
  const int64_t most_panels = ceil_div(panel_count * groups, params.panel_groups);
  const Scratch<accumulate_t<scalar_t>> panels(most_panels *
                                               kernels.weight_panel_size(params.states));
  params.panels = panels.data();
  for (int64_t group = 0; group < params.panel_groups; group += groups) {
    const int64_t last_group = std::min(group + groups, params.panel_groups);
    params.first_panel = kernels.first_panel_of(params, group);
    const int64_t panels_here = kernels.first_panel_of(params, last_group) - params.first_panel;
    for_each_task(panels_here,
                  panels_here * kernels.weight_panel_size(params.states),
                  kShortCopies,
                  [&](int64_t begin, int64_t end) {
                    kernels.pack_weight_panels(
                        params, params.first_panel + begin, params.first_panel + end);
                  });
    const int64_t first_task = group * tasks_of_group;
    for_each_task((last_group - group) * tasks_of_group,
                  multiplications(input.size(0), d_weights.size(0), d_weights.size(1)) *
                      (last_group - group) / params.panel_groups,
                  kShortMultiplications,
                  [&](int64_t begin, int64_t end) {
                    kernels.weight_gradient(params, first_task + begin, first_task + end);
                  });
  }
}

template <typename scalar_t>
void bias_gradient_out(const Tensor& d_bias, const Tensor& d_gates) {
  const BiasGradientParams<scalar_t> params{.batch = d_gates.size(0),
                                            .gates = d_gates.size(1),
                                            .d_gates = d_gates.const_data_ptr<scalar_t>(),
                                            .d_bias = d_bias.mutable_data_ptr<scalar_t>()};
  for_each_task(params.gates, d_gates.numel(), kShortCopies, [&](int64_t begin, int64_t end) {
    product_kernels<scalar_t>().bias_gradient(params, begin, end);
  });
}

}  // namespace

void finish_own_gradients(const CellGradients& gradients,
                          const Tensor& input,
                          const Tensor& weights,
                          const Tensor& old_h) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, input.scalar_type(), "lltm::backward", [&] {
        if (gradients.bias.defined()) {
          bias_gradient_out<scalar_t>(gradients.bias, gradients.gates);
        }
        if (gradients.weights.defined()) {
          weight_gradient_out<scalar_t>(gradients.weights,
                                        gradients.gates,
                                        with_contiguous_rows(input),
                                        with_contiguous_rows(old_h));
        }
        if (gradients.input.defined() || gradients.old_h.defined()) {
          const Tensor weights_ = with_contiguous_rows(weights);
          if (gradients.input.defined()) {
            state_gradient_out<scalar_t>(gradients.input, gradients.gates, weights_, old_h.size(1));
          }
          if (gradients.old_h.defined()) {
            state_gradient_out<scalar_t>(gradients.old_h, gradients.gates, weights_, 0);
          }
        }
      });
}

}  // namespace lltm::cpu
