#include "gradient_products.h"

#include "../cell/column_runs.h"
#include "../cell/with_cell.h"
#include "../dispatch/optional_tensor.h"
#include "kernels/backward/kernels.h"
#include "kernels/recurrence/recurrence.h"
#include "kernels/sequence/kernels.h"
#include "library/products.h"
#include "packed_rows.h"
#include "plan/plan.h"
#include "products_of_rows.h"
#include "runtime/launch_check.h"
#include "runtime/rows.h"
#include "sequence.h"

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <limits>
#include <optional>

namespace lltm::cuda {
namespace {

using at::Tensor;

/// A mask of shape (steps, batch, 1) that is true beyond the lengths.
Tensor beyond_lengths(int64_t steps, const Tensor& lengths) {
  return at::arange(steps, lengths.options()).unsqueeze(1).ge(lengths).unsqueeze(2);
}

/// The h that each step started from, for all steps.
template <typename scalar_t>
Tensor old_states(const RecurrentBackwardArguments& arguments, const Device& device, bool reverse) {
  const Tensor& output = arguments.output;
  const RecurrentArguments& sequence = arguments.sequence;
  if (output.size(0) == 1 && is_given(sequence.h0) && !is_given(sequence.lengths) &&
      !is_given(sequence.reset)) {
    return *sequence.h0;
  }
  const Tensor old_h = rows_of_vectors(
      output.size(0) * output.size(1), output.size(2), output.scalar_type(), device);
  if (output.size(0) > 0) {
    const OldStatesParams<scalar_t> params{
        .states = old_states_of<scalar_t>(sequence, output, sequence.h0, reverse),
        .state_size = output.size(2),
        .old_h = old_h.mutable_data_ptr<scalar_t>(),
        .old_h_stride = old_h.stride(0),
    };
    check_launch(launch_old_states(params, device.stream()));
  }
  return old_h;
}

/// Whether every step but the first, which starts from zeros, starts from the output of another, as
/// it lies there: then nothing copies it.
bool starts_from_output(const RecurrentBackwardArguments& arguments) {
  const RecurrentArguments& sequence = arguments.sequence;
  const Tensor& output = arguments.output;
  return output.size(0) > 1 && !is_given(sequence.h0) && !is_given(sequence.lengths) &&
         !is_given(sequence.reset) && output.is_contiguous() && is_describable(output);
}

void launch_float32_products(BackwardProblem& problem,
                             const GradientPlan& plan,
                             const Device& device) {
  const Tensor packed = pack(problem, Arithmetic::kFloat32, /*by_wgmma=*/true, device);
  const Tensor workspace =
      device.empty({workspace_floats(Arithmetic::kFloat32, problem, plan)}, at::kFloat);
  check_launch(launch_backward_wgmma<Arithmetic::kFloat32>(
      problem, plan, workspace.mutable_data_ptr<float>(), device.stream()));
}

/// Computes the products over all steps in float32 by the kernel of the cell's products, if that is
/// faster than the library. Returns whether it did. Only d_weights read input and old_h, so their
/// layout affects neither which kernel computes d_input nor its bits.
bool run_float32_products(std::optional<Arithmetic> arithmetic,
                          const RecurrentGradients& gradients,
                          const Tensor& d_h0,
                          const Tensor& d_gates,
                          const Tensor& input,
                          c10::function_ref<Tensor()> old_h,
                          const RecurrentArguments& sequence,
                          const Device& device,
                          const DeviceFacts& facts) {
  const Tensor &weight_ih = sequence.weight_ih, &weight_hh = sequence.weight_hh;
  if (!sequence.cell.adds || arithmetic != Arithmetic::kFloat32 || !has_rows(weight_ih) ||
      (d_h0.defined() && !has_rows(weight_hh))) {
    return false;
  }
  const Shape shape{.work = Work::kBackward,
                    .cell = sequence.cell.type,
                    .arithmetic = Arithmetic::kFloat32,
                    .batch = input.size(0),
                    .input_features = input.size(1),
                    .state_size = weight_hh.size(1),
                    .vector_rows = is_describable(weight_ih) && is_describable(weight_hh),
                    .forms_d_old_h = d_h0.defined()};
  const Choice choice = plan_backward(facts, shape);
  if (choice.candidate->group != Group::kHopper) {
    return false;
  }
  const auto d_weights = weight_gradients<float>(gradients);
  // Without d_weights, any matrices take the places of these.
  const bool wants_weights = d_weights.any_wanted();
  const Rows inputs(wants_weights ? input : weight_ih);
  const Tensor started_from = wants_weights ? old_h() : weight_ih;
  BackwardProblem problem{
      .batch = shape.batch,
      .input_features = shape.input_features,
      .state_size = shape.state_size,
      .gates = shape.gates(),
      .d_gates = d_gates.const_data_ptr(),
      .d_gates_stride = d_gates.stride(0),
      .input = inputs.matrix(),
      .weights = rows_of(d_h0.defined() ? weight_hh : weight_ih),
      .weights_input = rows_of(weight_ih),
      .old_h = rows_of(started_from),
      .d_old_h = mutable_data_or_null<float>(d_h0),
      .d_input = mutable_data_or_null<float>(gradients.input),
      .d_weights = d_weights.as<void>(),
  };
  launch_float32_products(problem, choice.estimate.plan, device);
  return true;
}

/// The same of some columns of a side of a cell that does not add its sides: d_weights = d_gates.T
/// @ operand and, where d_operand has to be formed, d_operand = d_gates @ weights. Both may be
/// undefined.
bool run_float32_side(std::optional<Arithmetic> arithmetic,
                      const Tensor& d_weights,
                      bool forms_d_operand,
                      const Tensor& d_operand,
                      const Tensor& d_gates,
                      const Tensor& operand,
                      const Tensor& weights,
                      const RecurrentArguments& sequence,
                      const Device& device,
                      const DeviceFacts& facts) {
  if (sequence.cell.adds || arithmetic != Arithmetic::kFloat32 || weights.size(1) == 0 ||
      !has_rows(weights) || !is_describable(d_gates)) {
    return false;
  }
  const Shape shape{.work = Work::kBackward,
                    .cell = sequence.cell.type,
                    .arithmetic = Arithmetic::kFloat32,
                    .batch = d_gates.size(0),
                    .input_features = 0,
                    .state_size = weights.size(1),
                    .columns = d_gates.size(1),
                    .vector_rows = is_describable(weights),
                    .forms_d_old_h = forms_d_operand};
  const Choice choice = plan_backward(facts, shape);
  if (choice.candidate->group != Group::kHopper) {
    return false;
  }
  // Without d_weights, any matrix takes the place of the operand.
  const Rows operands(d_weights.defined() ? operand : weights);
  BackwardProblem problem{
      .batch = shape.batch,
      .input_features = 0,
      .state_size = shape.state_size,
      .gates = shape.gates(),
      .d_gates = d_gates.const_data_ptr(),
      .d_gates_stride = d_gates.stride(0),
      .input = operands.matrix(),
      .weights = rows_of(weights),
      .weights_input = rows_of(weights),
      .old_h = operands.matrix(),
      .d_old_h = mutable_data_or_null<float>(d_operand),
      .d_input = nullptr,
      .d_weights = {.of_h = mutable_data_or_null<float>(d_weights),
                    .of_input = nullptr,
                    .h_stride = d_weights.defined() ? d_weights.stride(0) : 0,
                    .input_stride = 0},
  };
  launch_float32_products(problem, choice.estimate.plan, device);
  return true;
}

/// Cells that add their sides have one bias each, and are alike.
template <typename Cell>
using BiasesOf = std::conditional_t<Cell::kAdds, cell::Lltm, Cell>;

/// The gradients of biases as the sum of the rows of `terms`; nothing if they are not wanted, and
/// then `terms` may be undefined.
template <typename Cell, typename scalar_t, typename Term = accumulate_t<scalar_t>>
BiasSum<Cell, scalar_t, Term> bias_sum(const RecurrentGradients& gradients,
                                       const Tensor& terms,
                                       int64_t state_size) {
  const BiasGradients<Cell, scalar_t> result{mutable_data_or_null<scalar_t>(gradients.bias),
                                             mutable_data_or_null<scalar_t>(gradients.bias_hh),
                                             state_size};
  if (!result.wanted()) {
    return {};
  }
  return {.rows = terms.const_data_ptr<Term>(),
          .count = terms.size(0),
          .size = terms.size(1),
          .stride = terms.stride(0),
          .result = result};
}

/// Without the parts of d_weights, which have no memory yet.
template <typename Cell, typename scalar_t>
GradientProducts<Cell, scalar_t> small_products(const Tensor& d_gates,
                                                const RecurrentGradients& gradients,
                                                const Tensor& bias_parts,
                                                const RecurrentBackwardArguments& arguments,
                                                const GradientParts& parts,
                                                bool reverse) {
  const RecurrentArguments& sequence = arguments.sequence;
  return {.old_h = old_states_of<scalar_t>(sequence, arguments.output, sequence.h0, reverse),
          .state_size = arguments.output.size(2),
          .input_features = sequence.input.size(2),
          .columns = sequence.weight_ih.size(0),
          .input = steps_of<scalar_t>(sequence.input),
          .input_weights = recurrent_weights<scalar_t>(sequence.weight_ih),
          .d_gates = d_gates.const_data_ptr<scalar_t>(),
          .d_gates_stride = d_gates.stride(0),
          .d_bias = bias_sum<Cell, scalar_t>(gradients, bias_parts, arguments.output.size(2)),
          .d_weights = weight_gradients<scalar_t>(gradients),
          .parts = parts,
          .weight_parts = nullptr,
          .d_input = mutable_data_or_null<scalar_t>(gradients.input)};
}

}  // namespace

void compute_gradient_products(const Tensor& d_gates,
                               std::optional<Arithmetic> arithmetic,
                               const RecurrentGradients& gradients,
                               const Tensor& d_h0,
                               const RecurrentBackwardArguments& arguments,
                               const Device& device,
                               const DeviceFacts& facts,
                               bool reverse) {
  const bool wants_weights = gradients.weight_ih.defined() || gradients.weight_hh.defined();
  const bool wants_input = gradients.input.defined();
  if (!wants_weights && !wants_input && !d_h0.defined()) {
    return;
  }
  const RecurrentArguments& sequence = arguments.sequence;
  const auto old_h = [&] {
    return AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, d_gates.scalar_type(), "lltm::sequence_backward", [&] {
          return old_states<scalar_t>(arguments, device, reverse);
        });
  };
  // Beyond a row's length d_gates are zeros, which a product must not multiply by a NaN or an
  // infinity.
  const bool has_lengths = is_given(sequence.lengths);
  const Tensor beyond =
      has_lengths ? beyond_lengths(sequence.input.size(0), *sequence.lengths) : Tensor();
  const int64_t rows = d_gates.size(0), input_features = sequence.input.size(2);
  const Tensor input =
      (has_lengths && wants_weights ? sequence.input.masked_fill(beyond, 0) : sequence.input)
          .reshape({rows, input_features});
  const auto product = [&](const Tensor& out, const Tensor& a, const Tensor& b) {
    product_out(out, a, b, arithmetic);
  };
  if (!run_float32_products(
          arithmetic, gradients, d_h0, d_gates, input, old_h, sequence, device, facts)) {
    if (d_h0.defined()) {
      product(d_h0, d_gates, sequence.weight_hh);
    }
    const CellDescriptor& cell = sequence.cell;
    const int64_t state_size = sequence.weight_hh.size(1);
    const auto weights_product = [&](const Tensor& d_weights,
                                     c10::ArrayRef<int> of,
                                     const Tensor& d,
                                     const Tensor& operands,
                                     const Tensor& weights) {
      for (const ColumnRun& run : runs_of(of, state_size)) {
        if (!run_float32_side(arithmetic,
                              run.side(d_weights),
                              /*forms_d_operand=*/false,
                              {},
                              run.saved(d),
                              operands,
                              run.side(weights),
                              sequence,
                              device,
                              facts)) {
          product_over_rows_out(run.side(d_weights), run.saved(d), operands, product);
        }
      }
    };
    if (gradients.weight_hh.defined() && starts_from_output(arguments)) {
      const int64_t batch = arguments.output.size(1);
      const auto steps = [&](const Tensor& of, bool first) {
        return of.narrow(0, first ? 0 : batch, rows - batch);
      };
      weights_product(gradients.weight_hh,
                      cell.of_gate,
                      steps(d_gates, /*first=*/reverse),
                      steps(arguments.output.flatten(0, 1), /*first=*/!reverse),
                      sequence.weight_hh);
    } else if (gradients.weight_hh.defined()) {
      weights_product(gradients.weight_hh, cell.of_gate, d_gates, old_h(), sequence.weight_hh);
    }
    const Tensor d_input = wants_input ? gradients.input.view({rows, input_features}) : Tensor();
    const auto runs = runs_of(cell.of_input, state_size);
    const bool in_one = runs.size() == 1 && (d_input.defined() || gradients.weight_ih.defined());
    if (!in_one || !run_float32_side(arithmetic,
                                     gradients.weight_ih,
                                     /*forms_d_operand=*/true,
                                     d_input,
                                     runs[0].saved(d_gates),
                                     input,
                                     sequence.weight_ih,
                                     sequence,
                                     device,
                                     facts)) {
      if (gradients.weight_ih.defined()) {
        weights_product(gradients.weight_ih, cell.of_input, d_gates, input, sequence.weight_ih);
      }
      if (wants_input) {
        for (const ColumnRun& run : runs) {
          product_of_rows_out(d_input,
                              run.saved(d_gates),
                              run.side(sequence.weight_ih),
                              [&](const Tensor& out, const Tensor& a, const Tensor& b) {
                                product_out(out, a, b, arithmetic, /*adds=*/&run != &runs.front());
                              });
        }
      }
    }
  }
  if (has_lengths && wants_input) {
    gradients.input.masked_fill_(beyond, 0);
  }
}

void compute_products_of_side(const ProductsOfSide& of,
                              std::optional<Arithmetic> arithmetic,
                              const RecurrentArguments& sequence,
                              const Device& device,
                              const DeviceFacts& facts) {
  const Tensor &d_weights = of.d_weights, &d_operand = of.d_operand;
  if (!d_weights.defined() && !d_operand.defined()) {
    return;
  }
  // The kernel that computes both in float32 does not add.
  const bool adds = of.adds && d_operand.defined();
  const Tensor apart = adds && arithmetic == Arithmetic::kFloat32
                           ? device.empty(d_operand.sizes(), d_operand.scalar_type())
                           : Tensor();
  if (run_float32_side(arithmetic,
                       d_weights,
                       /*forms_d_operand=*/true,
                       apart.defined() ? apart : d_operand,
                       of.d_gates,
                       of.operand,
                       of.weights,
                       sequence,
                       device,
                       facts)) {
    if (adds) {
      Tensor(d_operand).add_(apart);
    }
    return;
  }
  const auto product = [&](const Tensor& out, const Tensor& a, const Tensor& b) {
    product_out(out, a, b, arithmetic);
  };
  if (d_weights.defined()) {
    product_over_rows_out(d_weights, of.d_gates, of.operand, product);
  }
  if (d_operand.defined()) {
    product_of_rows_out(d_operand,
                        of.d_gates,
                        of.weights,
                        [&](const Tensor& out, const Tensor& a, const Tensor& b) {
                          product_out(out, a, b, arithmetic, adds);
                        });
  }
}

void compute_small_gradient_products(const Tensor& d_gates,
                                     const Tensor& bias_parts,
                                     const RecurrentGradients& gradients,
                                     const RecurrentBackwardArguments& arguments,
                                     const Device& device,
                                     const DeviceFacts& facts,
                                     bool reverse) {
  const int64_t state_size = arguments.output.size(2);
  const int64_t columns = arguments.sequence.weight_ih.size(0);
  const int64_t input_features = arguments.sequence.input.size(2);
  const GradientParts parts = parts_of_weight_gradient({.batch = d_gates.size(0),
                                                        .input_features = input_features,
                                                        .state_size = state_size,
                                                        .columns = columns},
                                                       facts);
  with_scalar(d_gates.scalar_type(), [&]<typename scalar_t>() {
    with_cell(arguments.sequence.cell.type, [&]<typename OfSides>() {
      auto products = small_products<BiasesOf<OfSides>, scalar_t>(
          d_gates, gradients, bias_parts, arguments, parts, reverse);
      const Tensor weight_parts =
          products.d_weights.any_wanted() && parts.count > 1
              ? device.empty({parts.count, columns, state_size + input_features}, at::kFloat)
              : Tensor();
      products.weight_parts = mutable_data_or_null<float>(weight_parts);
      check_launch(launch_gradient_products(products, device.stream()));
    });
  });
}

void compute_bias_gradients(const RecurrentGradients& gradients,
                            const Tensor& terms,
                            CellType cell,
                            int64_t state_size,
                            const Device& device) {
  // The most rows that are added about as fast as a product with ones is launched.
  constexpr int64_t kMostRows = 512;
  const at::ScalarType dtype =
      (gradients.bias.defined() ? gradients.bias : gradients.bias_hh).scalar_type();
  const int64_t rows = terms.size(0);
  Tensor sums = terms;
  if (rows > std::numeric_limits<int32_t>::max()) {
    // BLAS counts in 32 bits.
    sums = at::sum(terms, at::IntArrayRef{0}, /*keepdim=*/true, at::toOpMathType(dtype));
  } else if (rows > kMostRows && terms.scalar_type() == dtype) {
    // In 16 bits the sums are float32; float32 is not rounded to TF32.
    const Tensor ones = at::ones({1, rows}, terms.options());
    if (terms.itemsize() == 2) {
      sums = device.empty({1, terms.size(1)}, at::kFloat);
      product_out(sums, ones, terms, std::nullopt);
    } else {
      sums = at::mv(terms.t(), ones.squeeze(0)).unsqueeze(0);
    }
  }
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "lltm::sequence_backward", [&] {
    const auto launch = [&]<typename Cell, typename Term>() {
      return launch_bias_sum(bias_sum<Cell, scalar_t, Term>(gradients, sums, state_size),
                             device.stream());
    };
    check_launch(with_cell(cell, [&]<typename OfSides>() {
      using Cell = BiasesOf<OfSides>;
      return sums.scalar_type() == dtype
                 ? launch.template operator()<Cell, scalar_t>()
                 : launch.template operator()<Cell, accumulate_t<scalar_t>>();
    }));
  });
}

}  // namespace lltm::cuda
