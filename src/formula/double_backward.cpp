#include "double_backward.h"

#include "../dispatch/argument_list.h"
#include "../dispatch/optional_tensor.h"
#include "../dispatch/without_autocast.h"
#include "../operators/gate_gradients.h"
#include "rows.h"
#include "tangents.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <utility>
#include <vector>

namespace lltm::formula {
namespace {

class DoubleBackward {
 public:
  DoubleBackward(const SequenceBackwardArguments& arguments,
                 bool reverse,
                 const SequenceSizes<c10::SymInt>& sizes)
      : arguments_(arguments),
        reverse_(reverse),
        sizes_(sizes),
        rows_(arguments.sequence(), number_of(sizes.steps), reverse),
        h_columns_(columns(arguments.weights, 0, sizes.state_size)) {}

  std::vector<Tensor> gradients(const GradientsOfGradients& given) const {
    const Tensor& input = arguments_.input;
    const Tensor& weights = arguments_.weights;
    const auto dtype = input.scalar_type();
    const Tensor h0 = state_or_zeros(arguments_.h0, input, sizes_);
    const Tensor h_and_input = rows_.h_and_input(arguments_.output, h0, input);
    const Tensor z = at::linear(h_and_input, weights, arguments_.bias);
    const Tensor dz = std::get<0>(call(
        lltm::sequence_gate_gradients, list_of(arguments_), reverse_, std::array{false, false}));
    const Factors factors(z, rows_.zero_unless_running(arguments_.cells));

    // The sums over dz that follow the steps: d_input, d_weights and d_bias.
    Tensor of_dz = at::zeros_like(accumulated(dz));
    Tensor of_d_input = at::zeros_like(input);
    if (given.gates.defined()) {
      of_dz = of_dz + given.gates;
    }
    if (given.input.defined()) {
      of_d_input = rows_.zero_unless_running(given.input);
      of_dz = of_dz + of_d_input.matmul(input_columns().t());
    }
    if (given.weights.defined()) {
      of_dz = of_dz + h_and_input.matmul(given.weights.t());
    }
    if (given.bias.defined()) {
      of_dz = of_dz + given.bias;
    }

    // The last step of the backward pass comes first.
    const StepTangents of_steps =
        run_tangents(rows_,
                     factors,
                     of_dz,
                     accumulated(state_or_zeros(if_defined(given.h0), input, sizes_)),
                     accumulated(state_or_zeros(if_defined(given.c0), input, sizes_)),
                     h_columns_);
    const auto [of_z, of_cells] =
        differentiate_factors(factors, repeat_steps(factors, dz), of_steps, z);

    // The products from which the steps began.
    Tensor of_h_and_input = of_z.matmul(weights);
    if (given.weights.defined()) {
      of_h_and_input = of_h_and_input + dz.matmul(given.weights);
    }
    const Tensor of_products = at::cat({of_steps.old_h.to(dtype), of_d_input}, 2);
    const auto of_beginning = rows_.h_and_input_backward(of_h_and_input, sizes_.state_size);
    return {of_steps.h.to(dtype),
            of_steps.h_n.to(dtype),
            of_steps.c_n.to(final_cell_dtype(arguments_.sequence())),
            of_steps.cell.to(dtype),
            of_beginning.output,
            of_cells.to(dtype),
            of_beginning.input,
            sum_of_products(of_z, h_and_input) + sum_of_products(dz, of_products),
            of_z.sum(at::IntArrayRef{0, 1}),
            of_beginning.h0};
  }

 private:
  /// The gradients of the results of each step of the backward pass.
  struct StepGradients {
    Tensor d_h;      // (T, N, H)
    Tensor d_total;  // (T, N, H), the gradient of the cell state including what d_h adds to it
  };

  Tensor input_columns() const {
    return columns(
        arguments_.weights, sizes_.state_size, sizes_.state_size + sizes_.input_features);
  }

  /// Runs the backward pass again, but for its products.
  StepGradients repeat_steps(const Factors& factors, const Tensor& dz) const {
    const Tensor d_old_h = accumulated(dz.matmul(h_columns_));
    const auto d_old_h_at = d_old_h.unbind(), by_cell = factors.h_by_cell.unbind();
    Tensor dh = accumulated(state_or_zeros(arguments_.grad_h_n, arguments_.input, sizes_));
    Tensor d_cell = accumulated(state_or_zeros(arguments_.grad_c_n, arguments_.input, sizes_));
    std::vector<Tensor> d_h_of_steps, d_total_of_steps;
    for (int64_t k = rows_.steps() - 1; k >= 0; --k) {
      const int64_t t = rows_.time_of(k);
      const Tensor d_h = rows_.total(t, dh, arguments_.grad_output);
      const Tensor d_total = rows_.total(t, d_cell, arguments_.grad_cells) + d_h * by_cell[t];
      dh = rows_.where_running(t, rows_.zero_where_reset(t, d_old_h_at[t]), dh);
      d_cell = rows_.where_running(t, rows_.zero_where_reset(t, d_total), d_cell);
      d_h_of_steps.push_back(d_h);
      d_total_of_steps.push_back(d_total);
    }
    return {rows_.in_time_backward(d_h_of_steps, d_old_h),
            rows_.in_time_backward(d_total_of_steps, d_old_h)};
  }

  /// The gradients of z, in its dtype, and of the cell states.
  std::pair<Tensor, Tensor> differentiate_factors(const Factors& f,
                                                  const StepGradients& gradients,
                                                  const StepTangents& of_steps,
                                                  const Tensor& z) const {
    const auto gates = of_steps.z.chunk(3, /*dim=*/2);
    const auto& [d_h, d_total] = gradients;
    const Tensor by_i = gates[0] * d_total, by_o = gates[1] * d_h, by_g = gates[2] * d_total;
    const Tensor by_cell = of_steps.cell * d_h;
    const Tensor tanh_derivative = complement(f.tanh_cell * f.tanh_cell);
    const Tensor i_derivative = f.i * complement(f.i), o_derivative = f.o * complement(f.o);
    const Tensor of_i = (by_i * f.g * complement(2 * f.i) + by_g * f.g_derivative) * i_derivative;
    const Tensor of_o =
        (by_cell * tanh_derivative + by_o * f.tanh_cell * complement(2 * f.o)) * o_derivative;
    const Tensor g_second_derivative = at::where(z.chunk(3, /*dim=*/2)[2].lt(0), f.g_derivative, 0);
    const Tensor of_g = by_i * i_derivative * f.g_derivative + by_g * f.i * g_second_derivative;
    const Tensor of_cells =
        (by_o * o_derivative - 2 * by_cell * f.o * f.tanh_cell) * tanh_derivative;
    return {at::cat({of_i, of_o, of_g}, 2).to(z.scalar_type()), of_cells};
  }

  const SequenceBackwardArguments& arguments_;
  bool reverse_;
  const SequenceSizes<c10::SymInt>& sizes_;
  Rows rows_;
  Tensor h_columns_;
};

}  // namespace

std::vector<Tensor> double_backward(const SequenceBackwardArguments& arguments,
                                    bool reverse,
                                    const GradientsOfGradients& gradients) {
  const auto sizes = check<c10::SymInt>(arguments);
  const WithoutAutocast without_autocast;
  return DoubleBackward(arguments, reverse, sizes).gradients(gradients);
}

}  // namespace lltm::formula
