#include "double_backward.h"

#include "../dispatch/optional_tensor.h"
#include "../dispatch/without_autocast.h"
#include "../operators/operators.h"
#include "gradient_steps.h"
#include "problem.h"
#include "tangents.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <tuple>
#include <utility>
#include <vector>

namespace lltm::formula {
namespace {

/// Of the arguments of a backward operator.
struct Gradients {
  Tensor output_gradient;
  Tensor h_n_gradient;
  Tensor c_n_gradient;
  Tensor cells_gradient;
  Tensor output;
  Tensor cells;
  Tensor input;
  Tensor weight_ih;
  Tensor weight_hh;
  Tensor bias;
  Tensor h0;
  Tensor c0;
};

/// What the cells have in common. `dz` are the gradients of the gates.
class DoubleBackward {
 public:
  template <typename Arguments>
  DoubleBackward(const Arguments& arguments, const Problem& problem, Tensor dz)
      : problem_(problem),
        gradients_(arguments),
        output_(arguments.output),
        dz_(std::move(dz)),
        old_h_(problem.rows.old_states(output_, problem.h0)),
        input_(problem.rows.zero_unless_running(problem.input)),
        h_weights_(problem.h_weights()),
        input_weights_(problem.input_weights()),
        factors_(
            factors_of(problem, problem.z(problem.h_and_input(output_)), cells_of(arguments))) {}

  Gradients compute(const GradientsOfGradients& given) const {
    const Rows& rows = problem_.rows;
    const Tensor d_input_gradient = given.input.defined() ? rows.zero_unless_running(given.input)
                                                          : at::zeros_like(problem_.input);
    const Tensor dz_gradient = differentiate_sums(given, d_input_gradient);

    // The last step of the backward pass comes first.
    const auto initial = [&](const Tensor& gradient) {
      return accumulated(problem_.state_or_zeros(if_defined(gradient)));
    };
    const StepTangents steps =
        run_tangents(problem_, *factors_, dz_gradient, initial(given.h0), initial(given.c0));
    const FactorGradients factor_gradients = differentiate_factors(steps);
    const Tensor& z_gradient = factor_gradients.z;

    // The products from which the steps began.
    Tensor old_h_gradient = z_gradient.matmul(h_weights_),
           input_gradient = z_gradient.matmul(input_weights_);
    if (given.weight_hh.defined()) {
      old_h_gradient = old_h_gradient + dz_.matmul(given.weight_hh);
    }
    if (given.weight_ih.defined()) {
      input_gradient = input_gradient + dz_.matmul(given.weight_ih);
    }
    const auto [output_gradient, h0_gradient] = rows.old_states_backward(old_h_gradient);
    Gradients found{
        .output_gradient = steps.h.to(problem_.dtype),
        .h_n_gradient = steps.h_n.to(problem_.dtype),
        .c_n_gradient = steps.c_n.to(problem_.cell_dtype),
        .cells_gradient = steps.cell.to(problem_.dtype),
        .output = output_gradient,
        .cells = factor_gradients.cells,
        .input = rows.zero_unless_running(input_gradient),
        .weight_ih = sum_of_products(z_gradient, input_) + sum_of_products(dz_, d_input_gradient),
        .weight_hh = sum_of_products(z_gradient, old_h_) +
                     sum_of_products(dz_, steps.old_h.to(problem_.dtype)),
        .bias = z_gradient.sum(at::IntArrayRef{0, 1}),
        .h0 = h0_gradient,
        .c0 = {}};
    if (factor_gradients.old_cells.defined()) {
      const auto [cells_gradient, c0_gradient] =
          rows.old_states_backward(factor_gradients.old_cells);
      found.cells = sum_of(found.cells, cells_gradient);
      found.c0 = c0_gradient.to(problem_.cell_dtype);
    }
    found.cells = found.cells.to(problem_.dtype);
    return found;
  }

 private:
  /// The gradient of dz through the sums over it that follow the steps: d_input, d_weights, d_bias.
  Tensor differentiate_sums(const GradientsOfGradients& given,
                            const Tensor& d_input_gradient) const {
    Tensor gradient = at::zeros_like(accumulated(dz_));
    if (given.gates.defined()) {
      gradient = gradient + given.gates;
    }
    if (given.input.defined()) {
      gradient = gradient + d_input_gradient.matmul(input_weights_.t());
    }
    if (given.weight_hh.defined()) {
      gradient = gradient + old_h_.matmul(given.weight_hh.t());
    }
    if (given.weight_ih.defined()) {
      gradient = gradient + input_.matmul(given.weight_ih.t());
    }
    if (given.bias.defined()) {
      gradient = gradient + given.bias;
    }
    return gradient;
  }

  /// The gradients of z, in its dtype, and of the cell states.
  FactorGradients differentiate_factors(const StepTangents& steps) const {
    // The backward pass again, but for its products.
    const Tensor d_old_h = accumulated(dz_.matmul(h_weights_));
    const auto d_old_h_at = d_old_h.unbind();
    const StepGradients backward = run_gradients(
        problem_, *factors_, gradients_, [&](int64_t t, const Tensor&, const Tensor&) {
          return d_old_h_at[t];
        });
    const Tensor d_h = problem_.rows.in_time_backward(backward.h, d_old_h);
    const Tensor d_cell = problem_.rows.in_time_backward(backward.cell, d_old_h);
    const auto count = static_cast<int64_t>(factors_->by_z.size());
    std::vector<Tensor> d_by_z = steps.z.chunk(count, /*dim=*/2);
    for (size_t gate = 0; gate < d_by_z.size(); ++gate) {
      d_by_z[gate] = d_by_z[gate] * (gate == factors_->output_gate ? d_h : d_cell);
    }
    return factors_->backward(d_by_z, steps.cell * d_h, steps.old_cell * d_cell);
  }

  const Problem& problem_;
  ResultGradients gradients_;
  const Tensor& output_;
  Tensor dz_;
  Tensor old_h_, input_;
  Tensor h_weights_, input_weights_;
  std::unique_ptr<Factors> factors_;
};

template <typename GateGradientsOp, typename Arguments>
Gradients compute_gradients(const Arguments& arguments,
                            bool reverse,
                            const GradientsOfGradients& gradients) {
  auto sizes = check<c10::SymInt>(arguments);
  const WithoutAutocast without_autocast;
  const Tensor dz = std::get<0>(GateGradientsOp::call(arguments, reverse, {}));
  const Problem problem(arguments.sequence, reverse, std::move(sizes));
  GradientsOfGradients given = gradients;
  if (given.weights.defined()) {
    std::tie(given.weight_hh, given.weight_ih) = two_blocks(given.weights, problem.sizes);
  }
  return DoubleBackward(arguments, problem, dz).compute(given);
}

}  // namespace

std::vector<Tensor> double_backward(const LltmSequenceBackwardArguments& arguments,
                                    bool reverse,
                                    const GradientsOfGradients& gradients) {
  const Gradients found =
      compute_gradients<op::LltmSequenceGateGradients>(arguments, reverse, gradients);
  return {found.output_gradient,
          found.h_n_gradient,
          found.c_n_gradient,
          found.cells_gradient,
          found.output,
          found.cells,
          found.input,
          at::cat({found.weight_hh, found.weight_ih}, 1),
          found.bias,
          found.h0};
}

std::vector<Tensor> double_backward(const LstmBackwardArguments& arguments,
                                    bool reverse,
                                    const GradientsOfGradients& gradients) {
  const Gradients found = compute_gradients<op::LstmGateGradients>(arguments, reverse, gradients);
  return {found.output_gradient,
          found.h_n_gradient,
          found.c_n_gradient,
          found.cells_gradient,
          found.output,
          found.cells,
          found.input,
          found.weight_ih,
          found.weight_hh,
          found.bias,
          found.h0,
          found.c0};
}

std::vector<Tensor> double_backward(const GruBackwardArguments& arguments,
                                    bool reverse,
                                    const GradientsOfGradients& gradients) {
  constexpr const CellDescriptor& kCell = GruArguments::kCell;
  const auto of_input = [](const Tensor& side) {
    return to_saved(side, kCell.of_input, kCell.saved);
  };
  const auto of_gate = [](const Tensor& side) {
    return to_saved(side, kCell.of_gate, kCell.saved);
  };
  const Gradients found = compute_gradients<op::GruGateGradients>(
      arguments,
      reverse,
      {.gates = gradients.gates,
       .input = gradients.input,
       .weight_ih = of_input(gradients.weight_ih),
       .weight_hh = of_gate(gradients.weight_hh),
       .bias = sum_of(of_input(gradients.bias), of_gate(gradients.bias_hh)),
       .h0 = gradients.h0,
       .c0 = gradients.h0});
  return {found.output_gradient,
          found.c_n_gradient,
          found.output + found.cells,
          found.input,
          from_saved(found.weight_ih, kCell.of_input, kCell.saved),
          from_saved(found.weight_hh, kCell.of_gate, kCell.saved),
          from_saved(found.bias, kCell.of_input, kCell.saved),
          from_saved(found.bias, kCell.of_gate, kCell.saved),
          found.h0 + found.c0};
}

}  // namespace lltm::formula
