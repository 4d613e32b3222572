#include "double_backward.h"

#include "../argument_list.h"
#include "../gate_gradients.h"
#include "../optional_tensor.h"
#include "../without_autocast.h"
#include "cell.h"
#include "rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <utility>
#include <vector>

namespace lltm::formula {
namespace {

/// What every step of the backward pass reads, (T, N, H) each. With d_h and d_cell, the gradients
/// of a step's results, it computes
///
///     d_total = d_cell + d_h * d_cell_by_h             d_old_cell = d_total
///     dz_i = d_total * by_i     dz_o = d_h * by_o      dz_g = d_total * by_g
struct Factors {
  Tensor i, o, g, tanh_cell;
  Tensor g_derivative, g_second_derivative;
  Tensor d_cell_by_h, by_i, by_o, by_g;
};

Factors factors_of(const Tensor& z, const Tensor& cells) {
  const auto gates = accumulated(z).chunk(3, /*dim=*/2);
  Factors f;
  f.i = at::sigmoid(gates[0]);
  f.o = at::sigmoid(gates[1]);
  f.g = at::elu(gates[2]);
  f.tanh_cell = at::tanh(cells);
  f.g_derivative = at::exp(gates[2].clamp_max(0));
  f.g_second_derivative = at::where(gates[2].le(0), f.g_derivative, 0);
  f.d_cell_by_h = f.o * complement(f.tanh_cell * f.tanh_cell);
  f.by_i = f.g * f.i * complement(f.i);
  f.by_o = f.tanh_cell * f.o * complement(f.o);
  f.by_g = f.i * f.g_derivative;
  return f;
}

class DoubleBackward {
 public:
  DoubleBackward(const SequenceBackwardArguments& arguments,
                 bool reverse,
                 const SequenceSizes<c10::SymInt>& sizes)
      : arguments_(arguments),
        reverse_(reverse),
        sizes_(sizes),
        steps_(number_of(sizes.steps)),
        rows_(arguments.sequence(), steps_, reverse),
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
    const Factors factors = factors_of(z, accumulated(rows_.zero_unless_running(arguments_.cells)));

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

    const OfSteps of_steps = differentiate_steps(factors, of_dz, given.h0, given.c0);
    const auto [of_z, of_cells] =
        differentiate_factors(factors, repeat_steps(factors, dz), of_steps, z);

    // The products from which the steps began.
    Tensor of_h_and_input = of_z.matmul(weights);
    if (given.weights.defined()) {
      of_h_and_input = of_h_and_input + dz.matmul(given.weights);
    }
    const Tensor of_products = at::cat({of_steps.d_old_h.to(dtype), of_d_input}, 2);
    const auto of_beginning = rows_.h_and_input_backward(of_h_and_input, sizes_.state_size);
    return {of_steps.d_h.to(dtype),
            of_steps.d_h_n.to(dtype),
            of_steps.d_c_n.to(final_cell_dtype(arguments_.sequence())),
            of_steps.d_cell.to(dtype),
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

  /// The gradients of what the backward pass computed.
  struct OfSteps {
    Tensor dz;       // (T, N, 3H)
    Tensor d_old_h;  // (T, N, H), as the following ones
    Tensor d_h;
    Tensor d_cell;
    Tensor d_h_n;  // (N, H)
    Tensor d_c_n;
  };

  Tensor input_columns() const {
    return columns(
        arguments_.weights, sizes_.state_size, sizes_.state_size + sizes_.input_features);
  }

  Tensor in_time(std::vector<Tensor> of_steps,
                 bool reverse,
                 const c10::SymInt& width,
                 const Tensor& like) const {
    return stacked(std::move(of_steps), reverse, like, {sizes_.batch, width});
  }

  /// Runs the backward pass again, but for its products.
  StepGradients repeat_steps(const Factors& factors, const Tensor& dz) const {
    const Tensor d_old_h = accumulated(dz.matmul(h_columns_));
    Tensor dh = accumulated(state_or_zeros(arguments_.grad_h_n, arguments_.input, sizes_));
    Tensor d_cell = accumulated(state_or_zeros(arguments_.grad_c_n, arguments_.input, sizes_));
    std::vector<Tensor> d_h_of_steps, d_total_of_steps;
    for (int64_t k = steps_ - 1; k >= 0; --k) {
      const int64_t t = rows_.time_of(k);
      const Tensor d_h = rows_.total(t, dh, arguments_.grad_output);
      const Tensor d_total =
          rows_.total(t, d_cell, arguments_.grad_cells) + d_h * factors.d_cell_by_h.select(0, t);
      dh = rows_.where_running(t, rows_.zero_where_reset(t, d_old_h.select(0, t)), dh);
      d_cell = rows_.where_running(t, rows_.zero_where_reset(t, d_total), d_cell);
      d_h_of_steps.push_back(d_h);
      d_total_of_steps.push_back(d_total);
    }
    return {in_time(d_h_of_steps, !reverse_, sizes_.state_size, d_old_h),
            in_time(d_total_of_steps, !reverse_, sizes_.state_size, d_old_h)};
  }

  /// Differentiates the backward pass: the last step that it ran comes first. of_dz are the
  /// gradients of dz that do not come from another step.
  OfSteps differentiate_steps(const Factors& factors,
                              const Tensor& of_dz,
                              const Tensor& of_h0,
                              const Tensor& of_c0) const {
    Tensor of_h = accumulated(state_or_zeros(if_defined(of_h0), arguments_.input, sizes_));
    Tensor of_cell = accumulated(state_or_zeros(if_defined(of_c0), arguments_.input, sizes_));
    std::vector<Tensor> dz_of_steps, d_old_h_of_steps, d_h_of_steps, d_cell_of_steps;
    for (int64_t k = 0; k < steps_; ++k) {
      const int64_t t = rows_.time_of(k);
      const auto of_old_state = [&](const Tensor& of_state) {
        return rows_.zero_unless_running(t, rows_.zero_where_reset(t, of_state));
      };
      const Tensor d_old_h = of_old_state(of_h);
      const Tensor product =
          accumulated(d_old_h.to(h_columns_.scalar_type()).matmul(h_columns_.t()));
      const Tensor dz = rows_.zero_unless_running(t, of_dz.select(0, t) + product);
      const auto gates = dz.chunk(3, /*dim=*/1);
      const Tensor d_cell = of_old_state(of_cell) + gates[0] * factors.by_i.select(0, t) +
                            gates[2] * factors.by_g.select(0, t);
      const Tensor d_h =
          d_cell * factors.d_cell_by_h.select(0, t) + gates[1] * factors.by_o.select(0, t);
      of_h = rows_.where_running(t, d_h, of_h);
      of_cell = rows_.where_running(t, d_cell, of_cell);
      dz_of_steps.push_back(dz);
      d_old_h_of_steps.push_back(d_old_h);
      d_h_of_steps.push_back(d_h);
      d_cell_of_steps.push_back(d_cell);
    }
    if (steps_ == 0) {
      of_h = of_h.clone();  // not the caller's tensors
      of_cell = of_cell.clone();
    }
    return {in_time(dz_of_steps, reverse_, 3 * sizes_.state_size, of_dz),
            in_time(d_old_h_of_steps, reverse_, sizes_.state_size, of_dz),
            in_time(d_h_of_steps, reverse_, sizes_.state_size, of_dz),
            in_time(d_cell_of_steps, reverse_, sizes_.state_size, of_dz),
            of_h,
            of_cell};
  }

  /// The gradients of z, in its dtype, and of the cell states.
  std::pair<Tensor, Tensor> differentiate_factors(const Factors& f,
                                                  const StepGradients& gradients,
                                                  const OfSteps& of_steps,
                                                  const Tensor& z) const {
    const auto gates = of_steps.dz.chunk(3, /*dim=*/2);
    const auto& [d_h, d_total] = gradients;
    const Tensor by_i = gates[0] * d_total, by_o = gates[1] * d_h, by_g = gates[2] * d_total;
    const Tensor by_cell = of_steps.d_cell * d_h;
    const Tensor tanh_derivative = complement(f.tanh_cell * f.tanh_cell);
    const Tensor i_derivative = f.i * complement(f.i), o_derivative = f.o * complement(f.o);
    const Tensor of_i = (by_i * f.g * complement(2 * f.i) + by_g * f.g_derivative) * i_derivative;
    const Tensor of_o =
        (by_cell * tanh_derivative + by_o * f.tanh_cell * complement(2 * f.o)) * o_derivative;
    const Tensor of_g = by_i * i_derivative * f.g_derivative + by_g * f.i * f.g_second_derivative;
    const Tensor of_cells =
        (by_o * o_derivative - 2 * by_cell * f.o * f.tanh_cell) * tanh_derivative;
    return {at::cat({of_i, of_o, of_g}, 2).to(z.scalar_type()), of_cells};
  }

  const SequenceBackwardArguments& arguments_;
  bool reverse_;
  const SequenceSizes<c10::SymInt>& sizes_;
  int64_t steps_;
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
