#include "gradient_products.h"

#include "../kernel_arguments.h"
#include "../parallel.h"

#include <ATen/Dispatch.h>

#include <algorithm>

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
void gate_product_of_batch(const Tensor& out,
                           const Tensor& d_gates,
                           const Tensor& weights,
                           int64_t first_column) {
  std::vector<GateProductRow<scalar_t>> rows(d_gates.size(0));
  for (int64_t row = 0; row < d_gates.size(0); ++row) {
    rows[row] = {.d_gates = d_gates.const_data_ptr<scalar_t>() + row * d_gates.stride(0),
                 .out = out.mutable_data_ptr<scalar_t>() + row * out.stride(0)};
  }
  const WeightColumns<scalar_t> columns{.data = weights.const_data_ptr<scalar_t>() + first_column,
                                        .stride = weights.stride(0),
                                        .columns = out.size(1)};
  GateProduct<scalar_t>(d_gates.size(1), columns, d_gates.size(0)).write(rows);
}

}  // namespace

template <typename scalar_t>
GateProduct<scalar_t>::GateProduct(int64_t gates,
                                   const WeightColumns<scalar_t>& weights,
                                   int64_t row_count)
    : gates_(gates), weights_(weights) {
  // With many chunks of rows, all of them share one copy.
  if (row_count > 2 * product_kernels<scalar_t>().max_rows_per_chunk) {
    panels_ = pack_columns(weights, gates_);
  }
}

template <typename scalar_t>
void GateProduct<scalar_t>::write(const std::vector<GateProductRow<scalar_t>>& rows) const {
  const auto& kernels = product_kernels<scalar_t>();
  GateProductParams<scalar_t> params{.gates = gates_,
                                     .columns = weights_.columns,
                                     .rows = rows.data(),
                                     .row_count = static_cast<int64_t>(rows.size()),
                                     .weights = weights_.data,
                                     .weights_stride = weights_.stride,
                                     .row_chunks = 1,
                                     .panels = panels_ ? panels_->data() : nullptr};
  // There may be fewer panels of columns than threads, so the rows are split into chunks, too. Each
  // chunk copies its panel, which takes as long as about eight rows. A chunk should therefore have
  // at least three times as many rows, 24, to give every thread a task, and eight times as many,
  // 64, to give it several.
  const int64_t panels = std::max<int64_t>(1, kernels.gate_product_tasks(params));
  params.row_chunks =
      std::max({ceil_div(params.row_count, kernels.max_rows_per_chunk),
                std::min<int64_t>(ceil_div(at::get_num_threads(), panels), params.row_count / 24),
                std::min<int64_t>(ceil_div(wanted_tasks(), panels), params.row_count / 64)});
  for_each_task(kernels.gate_product_tasks(params),
                multiplications(params.row_count, params.gates, params.columns),
                kShortMultiplications,
                [&](int64_t begin, int64_t end) { kernels.gate_product(params, begin, end); });
}

template <typename scalar_t>
ParameterGradients<scalar_t>::ParameterGradients(int64_t gates,
                                                 int64_t state_size,
                                                 int64_t input_features,
                                                 int64_t most_rows,
                                                 bool in_one_call,
                                                 const GradientBlock<scalar_t>& d_weight_hh,
                                                 const GradientBlock<scalar_t>& d_weight_ih,
                                                 scalar_t* d_bias)
    : weights_{.gates = gates,
               .h_columns = d_weight_hh.data ? state_size : 0,
               .input_columns = d_weight_ih.data ? input_features : 0,
               .rows = nullptr,
               .row_count = std::min(most_rows, product_kernels<scalar_t>().max_rows_per_sum),
               .is_first = in_one_call,
               .is_last = in_one_call,
               .sums = nullptr,
               .d_weight_hh = d_weight_hh,
               .d_weight_ih = d_weight_ih,
               .panel_groups = 1,
               .panels = nullptr,
               .first_panel = 0},
      bias_{.rows = nullptr,
            .row_count = 0,
            .is_first = in_one_call,
            .is_last = in_one_call,
            .sums = nullptr,
            .d_bias = d_bias} {
  const auto& kernels = product_kernels<scalar_t>();
  if (d_bias && !in_one_call) {
    bias_.sums = bias_sums_.emplace(gates).data();
  }
  if (columns() == 0) {
    return;
  }
  const int64_t panel_count = kernels.weight_panels(weights_);
  const int64_t groups_for_threads =
      ceil_div(wanted_tasks(), kernels.weight_gradient_tasks(weights_));
  weights_.panel_groups = std::max({ceil_div(panel_count, kernels.max_panels_per_group),
                                    std::min(groups_for_threads, panel_count),
                                    int64_t{1}});
  // Group by group, as long as every thread has work, because a few panels stay in the cache.
  groups_at_once_ = std::min(groups_for_threads, weights_.panel_groups);
  const int64_t panels_at_once = ceil_div(panel_count * groups_at_once_, weights_.panel_groups);
  weights_.panels = panels_.emplace(panels_at_once * kernels.weight_panel_size(weights_)).data();
  if (!in_one_call || most_rows > kernels.max_rows_per_sum) {
    weights_.sums = weight_sums_.emplace(kernels.weight_sums_size(weights_)).data();
  }
}

template <typename scalar_t>
void ParameterGradients<scalar_t>::add(const std::vector<GradientRow<scalar_t>>& rows,
                                       bool is_first,
                                       bool is_last) {
  const auto& kernels = product_kernels<scalar_t>();
  const int64_t row_count = static_cast<int64_t>(rows.size());
  if (bias_.d_bias) {
    bias_.rows = rows.data();
    bias_.row_count = row_count;
    bias_.is_first = is_first;
    bias_.is_last = is_last;
    const int64_t gates = weights_.gates;
    for_each_task(gates, gates * row_count, kShortCopies, [&](int64_t begin, int64_t end) {
      kernels.bias_gradient(bias_, begin, end);
    });
  }
  if (row_count == 0) {
    zero_weights();
  }
  const int64_t sums = columns() > 0 ? ceil_div(row_count, kernels.max_rows_per_sum) : 0;
  for (int64_t sum = 0; sum < sums; ++sum) {
    const int64_t first_row = row_count * sum / sums;
    weights_.rows = rows.data() + first_row;
    weights_.row_count = row_count * (sum + 1) / sums - first_row;
    weights_.is_first = is_first && sum == 0;
    weights_.is_last = is_last && sum + 1 == sums;
    for (int64_t group = 0; group < weights_.panel_groups; group += groups_at_once_) {
      add_to_weights(group, std::min(group + groups_at_once_, weights_.panel_groups));
    }
  }
}

template <typename scalar_t>
void ParameterGradients<scalar_t>::zero_weights() {
  for (int64_t gate = 0; gate < weights_.gates; ++gate) {
    const auto &hh = weights_.d_weight_hh, &ih = weights_.d_weight_ih;
    std::fill_n(hh.data + gate * hh.stride, weights_.h_columns, scalar_t(0));
    std::fill_n(ih.data + gate * ih.stride, weights_.input_columns, scalar_t(0));
  }
}

/// Packs the panels of the groups [first_group, last_group) and multiplies by them.
template <typename scalar_t>
void ParameterGradients<scalar_t>::add_to_weights(int64_t first_group, int64_t last_group) {
  const auto& kernels = product_kernels<scalar_t>();
  weights_.first_panel = kernels.first_panel_of(weights_, first_group);
  const int64_t panels = kernels.first_panel_of(weights_, last_group) - weights_.first_panel;
  for_each_task(panels,
                panels * kernels.weight_panel_size(weights_),
                kShortCopies,
                [&](int64_t begin, int64_t end) {
                  kernels.pack_weight_panels(
                      weights_, weights_.first_panel + begin, weights_.first_panel + end);
                });
  const int64_t tasks_of_group = kernels.weight_gradient_tasks(weights_) / weights_.panel_groups;
  const int64_t first_task = first_group * tasks_of_group;
  for_each_task((last_group - first_group) * tasks_of_group,
                multiplications(weights_.row_count, weights_.gates, columns()) *
                    (last_group - first_group) / weights_.panel_groups,
                kShortMultiplications,
                [&](int64_t begin, int64_t end) {
                  kernels.weight_gradient(weights_, first_task + begin, first_task + end);
                });
}

void finish_fused_gradients(const CellGradients& gradients,
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
          scalar_t* const d_weights = mutable_data_or_null<scalar_t>(gradients.weights);
          const int64_t columns = weights.size(1);
          ParameterGradients<scalar_t>(weights.size(0),
                                       state_size,
                                       input.size(1),
                                       input.size(0),
                                       /*in_one_call=*/true,
                                       {d_weights, columns},
                                       {d_weights ? d_weights + state_size : nullptr, columns},
                                       mutable_data_or_null<scalar_t>(gradients.bias))
              .add(rows, /*is_first=*/true, /*is_last=*/true);
        }
        if (gradients.input.defined()) {
          gate_product_of_batch<scalar_t>(gradients.input, gradients.gates, weights_, state_size);
        }
        if (gradients.old_h.defined()) {
          gate_product_of_batch<scalar_t>(gradients.old_h, gradients.gates, weights_, 0);
        }
      });
}

// Used by the steps of a sequence.
#define LLTM_INSTANTIATE(scalar_t)             \
  template class ParameterGradients<scalar_t>; \
  template class GateProduct<scalar_t>;
LLTM_INSTANTIATE(double)
LLTM_INSTANTIATE(float)
LLTM_INSTANTIATE(c10::Half)
LLTM_INSTANTIATE(c10::BFloat16)
#undef LLTM_INSTANTIATE

}  // namespace lltm::cpu
