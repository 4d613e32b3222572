// Forward-mode AD of a sequence: the tangents of its results, in ATen operations, from the results
// of the fused kernels.
//
// The steps of a tangent also are those of the double backward (double_backward.h): the derivative
// of the backward pass runs in the order of the sequence.
#pragma once

#include "../operators/arguments.h"
#include "factors.h"
#include "problem.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>

namespace lltm::formula {

/// The tangents of every step, in the accumulation type.
struct StepTangents {
  Tensor z;      // (T, N, saved)
  Tensor old_h;  // (T, N, H), as the next three
  Tensor old_cell;
  Tensor h;
  Tensor cell;
  Tensor h_n;  // (N, H)
  Tensor c_n;
};

/// The factors of a sequence with these results. h_and_input is that of problem.h.
std::unique_ptr<Factors> factors_of(const Problem& problem, const Tensor& z, const Tensor& cells);

/// Runs all steps. `z` (T, N, saved) is the part of z's tangent that does not come from the step
/// before, `h` and `cell` (N, H) are the tangents of the initial state.
StepTangents run_tangents(
    const Problem& problem, const Factors& factors, const Tensor& z, Tensor h, Tensor cell);

/// The tangents of the results but gates: output, h_n, c_n and cells. `tangents` has those of the
/// operator's differentiable arguments in their order, which may be undefined. `output` and `cells`
/// are the results of the sequence.
std::array<Tensor, 4> tangents_of_sequence(const LltmSequenceArguments& arguments,
                                           bool reverse,
                                           const std::array<Tensor, 5>& tangents,
                                           const Tensor& output,
                                           const Tensor& cells);
std::array<Tensor, 4> tangents_of_sequence(const LstmArguments& arguments,
                                           bool reverse,
                                           const std::array<Tensor, 6>& tangents,
                                           const Tensor& output,
                                           const Tensor& cells);
/// The same of a GRU: output and h_n.
std::array<Tensor, 2> tangents_of_sequence(const GruArguments& arguments,
                                           bool reverse,
                                           const std::array<Tensor, 6>& tangents,
                                           const Tensor& output,
                                           const Tensor& cells);

}  // namespace lltm::formula
