#include "backward.h"

#include "../dispatch/optional_tensor.h"
#include "../dispatch/without_autocast.h"
#include "../operators/one_step.h"
#include "gradient_steps.h"
#include "problem.h"
#include "tangents.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include <vector>

namespace lltm::formula {

using at::Tensor;

template <typename Arguments, size_t states>
GateGradientsOf<states> gate_gradients(const Arguments& arguments,
                                       bool reverse,
                                       std::array<bool, states> state_mask) {
  auto sizes = check<c10::SymInt>(arguments);
  const WithoutAutocast without_autocast;
  const Problem problem(arguments.sequence, reverse, std::move(sizes));
  const Rows& rows = problem.rows;
  const Tensor z = problem.z(problem.h_and_input(arguments.output));
  const auto factors = factors_of(problem, z, cells_of(arguments));
  const Tensor h_weights = problem.h_weights();
  std::vector<std::vector<Tensor>> by_z;
  for (const Tensor& factor : factors->by_z) {
    by_z.push_back(factor.unbind());
  }

  const auto wanted = both_states(state_mask);
  const bool wants_first_h = problem.cell.carries_h ? wanted[1] : wanted[0];
  const int64_t first = rows.steps() == 0 ? 0 : rows.time_of(0);
  std::vector<Tensor> dz_steps;
  const auto old_h_gradient = [&](int64_t t, const Tensor& d_h, const Tensor& d_cell) {
    std::vector<Tensor> d_gates;
    for (size_t gate = 0; gate < by_z.size(); ++gate) {
      d_gates.push_back((gate == factors->output_gate ? d_h : d_cell) * by_z[gate][t]);
    }
    const Tensor dz = rows.zero_unless_running(t, at::cat(d_gates, 1)).to(problem.dtype);
    dz_steps.push_back(dz);
    const bool needed = t != first || wants_first_h;
    return needed ? accumulated(dz.matmul(h_weights)) : Tensor();
  };
  const auto steps = run_gradients(problem, *factors, ResultGradients(arguments), old_h_gradient);
  return gate_gradients_of<states>(
      rows.in_time_backward(dz_steps, z),
      if_wanted(wanted[0], [&] { return steps.h0.to(problem.dtype); }),
      if_wanted(wanted[1], [&] { return steps.c0.to(problem.cell_dtype); }));
}

template GateGradients gate_gradients(const LltmSequenceBackwardArguments&,
                                      bool,
                                      std::array<bool, 2>);
template GateGradients gate_gradients(const LstmBackwardArguments&, bool, std::array<bool, 2>);
template OneStateGateGradients gate_gradients(const GruBackwardArguments&,
                                              bool,
                                              std::array<bool, 1>);

OptionalGradients<5> finish_gradients(const GateGradients& gate_gradients,
                                      const LltmSequenceBackwardArguments& arguments,
                                      bool reverse,
                                      std::array<bool, 5> output_mask) {
  auto sizes = check<c10::SymInt>(arguments);
  const WithoutAutocast without_autocast;
  const Problem problem(arguments.sequence, reverse, std::move(sizes));
  const Tensor& dz = std::get<0>(gate_gradients);
  return {
      if_wanted(
          output_mask[LltmGradient::kInput],
          [&] { return problem.rows.zero_unless_running(dz.matmul(problem.input_weights())); }),
      if_wanted(output_mask[LltmGradient::kWeights],
                [&] { return sum_of_products(dz, problem.h_and_input(arguments.output)); }),
      if_wanted(output_mask[LltmGradient::kBias], [&] { return dz.sum(at::IntArrayRef{0, 1}); }),
      std::get<1>(gate_gradients),
      std::get<2>(gate_gradients),
  };
}

OptionalGradients<6> finish_gradients(const GateGradients& gate_gradients,
                                      const LstmBackwardArguments& arguments,
                                      bool reverse,
                                      std::array<bool, 6> output_mask) {
  auto sizes = check<c10::SymInt>(arguments);
  const WithoutAutocast without_autocast;
  const Problem problem(arguments.sequence, reverse, std::move(sizes));
  const Rows& rows = problem.rows;
  const Tensor& dz = std::get<0>(gate_gradients);
  return {
      if_wanted(output_mask[LstmGradient::kInput],
                [&] { return rows.zero_unless_running(dz.matmul(arguments.sequence.weight_ih)); }),
      if_wanted(
          output_mask[LstmGradient::kWeightIh],
          [&] { return sum_of_products(dz, rows.zero_unless_running(arguments.sequence.input)); }),
      if_wanted(output_mask[LstmGradient::kWeightHh],
                [&] { return sum_of_products(dz, rows.old_states(arguments.output, problem.h0)); }),
      if_wanted(output_mask[LstmGradient::kBias], [&] { return dz.sum(at::IntArrayRef{0, 1}); }),
      std::get<1>(gate_gradients),
      std::get<2>(gate_gradients),
  };
}

OptionalGradients<6> finish_gradients(const OneStateGateGradients& gate_gradients,
                                      const GruBackwardArguments& arguments,
                                      bool reverse,
                                      std::array<bool, 6> output_mask) {
  auto sizes = check<c10::SymInt>(arguments);
  const WithoutAutocast without_autocast;
  const GruArguments& sequence = arguments.sequence;
  const Problem problem(sequence, reverse, std::move(sizes));
  const Rows& rows = problem.rows;
  const auto& [dz, d_h0] = gate_gradients;
  const Tensor of_input = from_saved(dz, problem.cell.of_input, problem.cell.saved, /*dim=*/2);
  const Tensor of_gate = from_saved(dz, problem.cell.of_gate, problem.cell.saved, /*dim=*/2);
  const auto sum = [](const Tensor& steps) { return steps.sum(at::IntArrayRef{0, 1}); };
  return {
      if_wanted(output_mask[GruGradient::kInput],
                [&] { return rows.zero_unless_running(of_input.matmul(sequence.weight_ih)); }),
      if_wanted(
          output_mask[GruGradient::kWeightIh],
          [&] { return sum_of_products(of_input, rows.zero_unless_running(sequence.input)); }),
      if_wanted(
          output_mask[GruGradient::kWeightHh],
          [&] { return sum_of_products(of_gate, rows.old_states(arguments.output, problem.h0)); }),
      if_wanted(output_mask[GruGradient::kBiasIh], [&] { return sum(of_input); }),
      if_wanted(output_mask[GruGradient::kBiasHh], [&] { return sum(of_gate); }),
      d_h0,
  };
}

OptionalGradients<5> backward(const BackwardArguments& arguments, std::array<bool, 5> output_mask) {
  check<c10::SymInt>(arguments);
  return gradients_of_one_step(
      arguments, [&](const LltmSequenceBackwardArguments& sequence_arguments) {
        return sequence_backward(sequence_arguments, /*reverse=*/false, output_mask);
      });
}

}  // namespace lltm::formula
