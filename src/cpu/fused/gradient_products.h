// The matrix products of the gradients, with the kernels of kernels/kernels.h, over the rows of a
// batch or of all steps of a sequence.
#pragma once

#include "../../operators/gradients.h"
#include "../kernels/kernels.h"
#include "../scratch.h"
#include "packed_columns.h"

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace lltm::cpu {

/// Does the same as finish_gradients(), for a non-empty batch and state.
void finish_fused_gradients(const CellGradients& gradients,
                            const at::Tensor& input,
                            const at::Tensor& weights,
                            const at::Tensor& old_h);

/// d_weights = the sum over rows of d_gates.T @ [old_h | input], in two blocks, and d_bias = that
/// of d_gates. The rows may come in several calls.
template <typename scalar_t>
class ParameterGradients {
 public:
  /// Any of the gradients may be null. A call of add() has at most `most_rows` rows.
  ParameterGradients(int64_t gates,
                     int64_t state_size,
                     int64_t input_features,
                     int64_t most_rows,
                     bool in_one_call,
                     const GradientBlock<scalar_t>& d_weight_hh,
                     const GradientBlock<scalar_t>& d_weight_ih,
                     scalar_t* d_bias);

  /// Adds the rows of a call. Only a single call may have none.
  void add(const std::vector<GradientRow<scalar_t>>& rows, bool is_first, bool is_last);

 private:
  using Sums = Scratch<accumulate_t<scalar_t>>;

  int64_t columns() const { return weights_.h_columns + weights_.input_columns; }
  void zero_weights();
  void add_to_weights(int64_t first_group, int64_t last_group);

  WeightGradientParams<scalar_t> weights_;
  BiasGradientParams<scalar_t> bias_;
  int64_t groups_at_once_ = 1;
  std::optional<Sums> panels_, weight_sums_, bias_sums_;
};

/// out = d_gates @ weights, for each row. The rows may come in several calls.
template <typename scalar_t>
class GateProduct {
 public:
  /// row_count: the rows of all calls.
  GateProduct(int64_t gates, const WeightColumns<scalar_t>& weights, int64_t row_count);

  void write(const std::vector<GateProductRow<scalar_t>>& rows) const;

 private:
  int64_t gates_;
  WeightColumns<scalar_t> weights_;
  std::optional<Scratch<accumulate_t<scalar_t>>> panels_;
};

}  // namespace lltm::cpu
