#include "gradient_products.h"

#include "kernel_arguments.h"
#include "parallel.h"
#include "scratch.h"

#include <ATen/Dispatch.h>

#include <algorithm>
#include <optional>

namespace lltm::cpu {
namespace {

using at::Tensor;

template <typename scalar_t>
std::vector<GradientRow<scalar_t>> rows_of_batch(const Tensor& d_gates,
                                                 const Tensor& input,
                                                 const Tensor& old_h) {
  std::vector<GradientRow<scalar_t>> rows(d_gates.size(0));
  for (int64_t row = 0; row < d_gates.size(0); ++row) {
    rows[row] = {.d_gates = d_gates.const_data_ptr<scalar_t>() + row * d_gates.stride(0),
                 .old_h = old_h.const_data_ptr<scalar_t>() + row * old_h.stride(0),
                 .input = input.const_data_ptr<scalar_t>() + row * input.stride(0)};
  }
  return rows;
}

template <typename scalar_t>
void state_gradient_of_batch(const Tensor& out,
                             const Tensor& d_gates,
                             const Tensor& weights,
                             int64_t first_column) {
  std::vector<StateGradientRow<scalar_t>> rows(d_gates.size(0));
  for (int64_t row = 0; row < d_gates.size(0); ++row) {
    rows[row] = {.d_gates = d_gates.const_data_ptr<scalar_t>() + row * d_gates.stride(0),
                 .out = out.mutable_data_ptr<scalar_t>() + row * out.stride(0)};
  }
  state_gradient_out<scalar_t>(rows,
                               d_gates.size(1) / 3,
                               {.data = weights.const_data_ptr<scalar_t>() + first_column,
                                .stride = weights.stride(0),
                                .columns = out.size(1)});
}

/// Packs the panels of the groups [first_group, last_group) and multiplies by them.
template <typename scalar_t>
void add_weight_gradient(WeightGradientParams<scalar_t> params,
                         int64_t first_group,
                         int64_t last_group) {
  const auto& kernels = product_kernels<scalar_t>();
  const int64_t columns = params.state_size + params.input_features;
  params.first_panel = kernels.first_panel_of(params, first_group);
  const int64_t panels = kernels.first_panel_of(params, last_group) - params.first_panel;
  for_each_task(panels,
                panels * kernels.weight_panel_size(params),
                kShortCopies,
                [&](int64_t begin, int64_t end) {
                  kernels.pack_weight_panels(
                      params, params.first_panel + begin, params.first_panel + end);
                });
  const int64_t tasks_of_group = kernels.weight_gradient_tasks(params) / params.panel_groups;
  const int64_t first_task = first_group * tasks_of_group;
  for_each_task((last_group - first_group) * tasks_of_group,
                multiplications(params.row_count, 3 * params.state_size, columns) *
                    (last_group - first_group) / params.panel_groups,
                kShortMultiplications,
                [&](int64_t begin, int64_t end) {
                  kernels.weight_gradient(params, first_task + begin, first_task + end);
                });
}

}  // namespace

template <typename scalar_t>
void state_gradient_out(const std::vector<StateGradientRow<scalar_t>>& rows,
                        int64_t state_size,
                        const WeightColumns<scalar_t>& weights) {
  const auto& kernels = product_kernels<scalar_t>();
  StateGradientParams<scalar_t> params{.gates = 3 * state_size,
                                       .columns = weights.columns,
                                       .rows = rows.data(),
                                       .row_count = static_cast<int64_t>(rows.size()),
                                       .weights = weights.data,
                                       .weights_stride = weights.stride,
                                       .row_chunks = 1,
                                       .panels = nullptr};
  // There may be fewer panels of columns than threads, so the rows are split into chunks, too. Each
  // chunk copies its panel, which takes as long as about eight rows. A chunk should therefore have
  // at least three times as many rows, 24, to give every thread a task, and eight times as many,
  // 64, to give it several.
  const int64_t panels = std::max<int64_t>(1, kernels.state_gradient_tasks(params));
  params.row_chunks =
      std::max({ceil_div(params.row_count, kernels.max_rows_per_chunk),
                std::min<int64_t>(ceil_div(at::get_num_threads(), panels), params.row_count / 24),
                std::min<int64_t>(ceil_div(wanted_tasks(), panels), params.row_count / 64)});
  // With many chunks, all of them share one copy.
  std::optional<Scratch<accumulate_t<scalar_t>>> packed;
  if (params.row_count > 2 * kernels.max_rows_per_chunk) {
    packed = pack_columns(weights, params.gates);
    params.panels = packed->data();
  }
  for_each_task(kernels.state_gradient_tasks(params),
                multiplications(params.row_count, params.gates, params.columns),
                kShortMultiplications,
                [&](int64_t begin, int64_t end) { kernels.state_gradient(params, begin, end); });
}

template <typename scalar_t>
void weight_gradient_out(const std::vector<GradientRow<scalar_t>>& rows,
                         int64_t state_size,
                         int64_t input_features,
                         scalar_t* d_weights) {
  const auto& kernels = product_kernels<scalar_t>();
  const int64_t row_count = static_cast<int64_t>(rows.size());
  const int64_t sums = ceil_div(row_count, kernels.max_rows_per_sum);
  WeightGradientParams<scalar_t> params{.state_size = state_size,
                                        .input_features = input_features,
                                        .rows = rows.data(),
                                        .row_count = ceil_div(row_count, sums),
                                        .is_first = true,
                                        .is_last = true,
                                        .sums = nullptr,
                                        .d_weights = d_weights,
                                        .panel_groups = 1,
                                        .panels = nullptr,
                                        .first_panel = 0};
  const int64_t panel_count = kernels.weight_panels(params);
  const int64_t panel_size = kernels.weight_panel_size(params);
  const int64_t tasks_of_group = kernels.weight_gradient_tasks(params);
  const int64_t groups_for_threads = ceil_div(wanted_tasks(), tasks_of_group);
  params.panel_groups = std::max({ceil_div(panel_count, kernels.max_panels_per_group),
                                  std::min(groups_for_threads, panel_count),
                                  int64_t{1}});
  // Group by group, as long as every thread has work, because a few panels stay in the cache.
  const int64_t groups = std::min(groups_for_threads, params.panel_groups);
  const int64_t most_panels = ceil_div(panel_count * groups, params.panel_groups);
  const Scratch<accumulate_t<scalar_t>> panels(most_panels * panel_size);
  const Scratch<accumulate_t<scalar_t>> partial(sums > 1 ? kernels.weight_sums_size(params) : 0);
  params.panels = panels.data();
  params.sums = partial.data();
  for (int64_t sum = 0; sum < sums; ++sum) {
    const int64_t first_row = row_count * sum / sums;
    params.rows = rows.data() + first_row;
    params.row_count = row_count * (sum + 1) / sums - first_row;
    params.is_first = sum == 0;
    params.is_last = sum + 1 == sums;
    for (int64_t group = 0; group < params.panel_groups; group += groups) {
      add_weight_gradient(params, group, std::min(group + groups, params.panel_groups));
    }
  }
}

template <typename scalar_t>
void bias_gradient_out(const std::vector<GradientRow<scalar_t>>& rows,
                       int64_t state_size,
                       scalar_t* d_bias) {
  const BiasGradientParams<scalar_t> params{
      .rows = rows.data(), .row_count = static_cast<int64_t>(rows.size()), .d_bias = d_bias};
  for_each_task(3 * state_size,
                3 * state_size * params.row_count,
                kShortCopies,
                [&](int64_t begin, int64_t end) {
                  product_kernels<scalar_t>().bias_gradient(params, begin, end);
                });
}

void finish_own_gradients(const CellGradients& gradients,
                          const Tensor& input,
                          const Tensor& weights,
                          const Tensor& old_h) {
  const Tensor input_ = with_contiguous_rows(input);
  const Tensor weights_ = with_contiguous_rows(weights);
  const Tensor old_h_ = with_contiguous_rows(old_h);
  const int64_t state_size = old_h.size(1);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, input.scalar_type(), "lltm::backward", [&] {
        if (gradients.bias.defined() || gradients.weights.defined()) {
          const auto rows = rows_of_batch<scalar_t>(gradients.gates, input_, old_h_);
          if (gradients.bias.defined()) {
            bias_gradient_out(rows, state_size, gradients.bias.mutable_data_ptr<scalar_t>());
          }
          if (gradients.weights.defined()) {
            weight_gradient_out(
                rows, state_size, input.size(1), gradients.weights.mutable_data_ptr<scalar_t>());
          }
        }
        if (gradients.input.defined()) {
          state_gradient_of_batch<scalar_t>(gradients.input, gradients.gates, weights_, state_size);
        }
        if (gradients.old_h.defined()) {
          state_gradient_of_batch<scalar_t>(gradients.old_h, gradients.gates, weights_, 0);
        }
      });
}

// Used by the steps of a sequence.
#define LLTM_INSTANTIATE(scalar_t)                                                                \
  template void weight_gradient_out(                                                              \
      const std::vector<GradientRow<scalar_t>>&, int64_t, int64_t, scalar_t*);                    \
  template void bias_gradient_out(const std::vector<GradientRow<scalar_t>>&, int64_t, scalar_t*); \
  template void state_gradient_out(                                                               \
      const std::vector<StateGradientRow<scalar_t>>&, int64_t, const WeightColumns<scalar_t>&);
LLTM_INSTANTIATE(double)
LLTM_INSTANTIATE(float)
LLTM_INSTANTIATE(c10::Half)
LLTM_INSTANTIATE(c10::BFloat16)
#undef LLTM_INSTANTIATE

}  // namespace lltm::cpu
