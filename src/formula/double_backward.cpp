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

/// What both cells have in common. `dz` are the gradients of the gates.
class DoubleBackward {
 public:
  template <typename Arguments>
  DoubleBackward(const Arguments& arguments, const Problem& problem, Tensor dz)
      : problem_(problem),
        gradients_(result_gradients(arguments)),
        output_(arguments.output),
        dz_(std::move(dz)),
        old_h_(problem.rows.old_states(output_, problem.h0)),
        input_(problem.rows.zero_unless_running(problem.input)),
        h_weights_(problem.h_weights()),
        input_weights_(problem.input_weights()),
        factors_(factors_of(problem, problem.z(problem.h_and_input(output_)), arguments.cells)) {}

  Gradients compute(const GradientsOfGradients& given) const {
    const Rows& rows = problem_.rows;
    // The sums over dz that follow the steps: d_input, d_weights and d_bias.
    Tensor of_dz = at::zeros_like(accumulated(dz_));
    Tensor of_d_input = at::zeros_like(problem_.input);
    if (given.gates.defined()) {
      of_dz = of_dz + given.gates;
    }
    if (given.input.defined()) {
      of_d_input = rows.zero_unless_running(given.input);
      of_dz = of_dz + of_d_input.matmul(input_weights_.t());
    }
    if (given.weight_hh.defined()) {
      of_dz = of_dz + old_h_.matmul(given.weight_hh.t());
    }
    if (given.weight_ih.defined()) {
      of_dz = of_dz + input_.matmul(given.weight_ih.t());
    }
    if (given.bias.defined()) {
      of_dz = of_dz + given.bias;
    }

    // The last step of the backward pass comes first.
    const auto initial = [&](const Tensor& gradient) {
      return accumulated(problem_.state_or_zeros(if_defined(gradient)));
    };
    const StepTangents steps =
        run_tangents(problem_, *factors_, of_dz, initial(given.h0), initial(given.c0));
    const FactorGradients of_factors = differentiate_factors(steps);
    const Tensor& of_z = of_factors.z;

    // The products from which the steps began.
    Tensor of_old_h = of_z.matmul(h_weights_), of_input = of_z.matmul(input_weights_);
    if (given.weight_hh.defined()) {
      of_old_h = of_old_h + dz_.matmul(given.weight_hh);
    }
    if (given.weight_ih.defined()) {
      of_input = of_input + dz_.matmul(given.weight_ih);
    }
    const auto [of_output, of_h0] = rows.old_states_backward(of_old_h);
    Gradients found{.output_gradient = steps.h.to(problem_.dtype),
                    .h_n_gradient = steps.h_n.to(problem_.dtype),
                    .c_n_gradient = steps.c_n.to(problem_.cell_dtype),
                    .cells_gradient = steps.cell.to(problem_.dtype),
                    .output = of_output,
                    .cells = of_factors.cells,
                    .input = rows.zero_unless_running(of_input),
                    .weight_ih = sum_of_products(of_z, input_) + sum_of_products(dz_, of_d_input),
                    .weight_hh = sum_of_products(of_z, old_h_) +
                                 sum_of_products(dz_, steps.old_h.to(problem_.dtype)),
                    .bias = of_z.sum(at::IntArrayRef{0, 1}),
                    .h0 = of_h0,
                    .c0 = {}};
    if (of_factors.old_cells.defined()) {
      const auto [of_cells, of_c0] = rows.old_states_backward(of_factors.old_cells);
      found.cells = found.cells + of_cells;
      found.c0 = of_c0.to(problem_.cell_dtype);
    }
    found.cells = found.cells.to(problem_.dtype);
    return found;
  }

 private:
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
    std::vector<Tensor> of_z = steps.z.chunk(count, /*dim=*/2);
    for (size_t gate = 0; gate < of_z.size(); ++gate) {
      of_z[gate] = of_z[gate] * (gate == factors_->output_gate ? d_h : d_cell);
    }
    return factors_->backward(of_z, steps.cell * d_h, steps.old_cell * d_cell);
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
  const Tensor dz = std::get<0>(GateGradientsOp::call(arguments, reverse, {false, false}));
  const Problem problem(arguments.sequence(), reverse, std::move(sizes));
  GradientsOfGradients given = gradients;
  if (given.weights.defined()) {
    std::tie(given.weight_hh, given.weight_ih) = two_blocks(given.weights, problem.sizes);
  }
  return DoubleBackward(arguments, problem, dz).compute(given);
}

}  // namespace

std::vector<Tensor> double_backward(const SequenceBackwardArguments& arguments,
                                    bool reverse,
                                    const GradientsOfGradients& gradients) {
  const Gradients found =
      compute_gradients<op::SequenceGateGradients>(arguments, reverse, gradients);
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

}  // namespace lltm::formula
