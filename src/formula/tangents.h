// Forward-mode AD of a sequence: the tangents of its results, in ATen operations, from the results
// of the fused kernels.
//
// The steps of a tangent also are those of the double backward (double_backward.h): the derivative
// of the backward pass runs in the order of the sequence.
#pragma once

#include "../operators/checks.h"
#include "rows.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>

namespace lltm::formula {

/// What a step multiplies its tangents or, in the backward pass, its gradients with. (T, N, H)
/// each, in the accumulation type.
struct Factors {
  Factors(const Tensor& z, const Tensor& cells);

  Tensor i, o, g, tanh_cell;
  Tensor g_derivative;
  Tensor cell_by_i, cell_by_g;  // d new_cell / d z_i, d z_g
  Tensor h_by_o, h_by_cell;     // d new_h / d z_o, d new_cell
};

/// The tangents of every step, in the accumulation type.
struct StepTangents {
  Tensor z;      // (T, N, 3H)
  Tensor old_h;  // (T, N, H), as the next two
  Tensor h;
  Tensor cell;
  Tensor h_n;  // (N, H)
  Tensor c_n;
};

/// Runs all steps. `of_z` (T, N, 3H) is the part of z's tangent that does not come from the step
/// before, `of_h` and `of_cell` (N, H) are the tangents of the initial state.
StepTangents run_tangents(const Rows& rows,
                          const Factors& factors,
                          const Tensor& of_z,
                          Tensor of_h,
                          Tensor of_cell,
                          const Tensor& h_columns);

/// The tangents of output, h_n, c_n and cells. `tangents` has those of input, weights, bias, h0 and
/// c0, which may be undefined. `output` and `cells` are the results of the sequence.
std::array<Tensor, 4> tangents_of_sequence(const SequenceArguments& arguments,
                                           bool reverse,
                                           const std::array<Tensor, 5>& tangents,
                                           const Tensor& output,
                                           const Tensor& cells);

}  // namespace lltm::formula
