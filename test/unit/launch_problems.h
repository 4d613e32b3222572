// Random problems with the layouts that the operators' glue produces, at addresses that are never
// read, and their launches: for tests of host code without a GPU.
#pragma once

#include "cuda/kernels/backward/kernels.h"
#include "cuda/kernels/pack.h"
#include "cuda/plan/backward.h"
#include "cuda/plan/forward.h"
#include "cuda/step_problem.h"
#include "device_facts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <vector>

namespace lltm::cuda {

/// Addresses that are never read, each a gigabyte from the next.
inline char* memory(int index) {
  return reinterpret_cast<char*>((uintptr_t{1} << 40) + (uintptr_t{1} << 30) * uintptr_t(index));
}

/// Those that templates of kernels were compiled for: all, unless CMake was told otherwise.
inline constexpr std::array kBuiltArithmetics{LLTM_BUILT_ARITHMETICS};
constexpr bool is_built(Arithmetic arithmetic) {
  return std::ranges::find(kBuiltArithmetics, arithmetic) != kBuiltArithmetics.end();
}

class Random {
 public:
  int64_t log_uniform(double least, double most) { return test::log_uniform(random_, least, most); }
  int64_t below(int64_t count) {
    return std::uniform_int_distribution<int64_t>(0, count - 1)(random_);
  }

 private:
  std::mt19937_64 random_{1};
};

/// Operands are in rows that TMA can describe, as backward.cpp packs them, and results are
/// contiguous. The bits of `wanted` select gradients.
inline BackwardProblem random_problem(Random& random, int size, bool vectors, int64_t wanted) {
  BackwardProblem p{};
  p.batch = random.log_uniform(1, 5000);
  p.input_features = random.below(16) == 0 ? 0 : random.log_uniform(1, 2500);
  p.state_size = random.log_uniform(1, 2500);
  const int64_t piece = 16 / size;
  const auto up = [&](int64_t n) { return whole_vectors(n, size); };
  if (vectors) {
    p.input_features = up(p.input_features + 1);
    p.state_size = up(p.state_size);
  }
  const int64_t h = p.state_size, x = p.input_features;
  const auto matrix = [&](int index, int64_t columns) {
    return Matrix{memory(index), up(columns) + piece * random.below(3)};
  };
  p.gates = 3 * h;
  p.d_gates = memory(0);
  p.d_gates_stride = packed_stride(p.gates, size);
  p.weights = matrix(1, h + x);
  // The wgmma of float32 reads these by themselves, and others only all of weights.
  p.weights_input = h % piece == 0 ? p.weights.from(h, size) : matrix(8, x);
  p.old_h = matrix(2, h);
  p.input = x > 0 ? matrix(3, x) : Matrix{};
  if (x > 0 && h % piece == 0 && random.below(4) == 0) {
    // Either one matrix, or two whose rows overlap those of the other.
    p.old_h.stride = random.below(2) == 0 ? up(h + x) : std::max(up(h), up(x));
    p.input = {static_cast<const char*>(p.old_h.data) + h * size, p.old_h.stride};
  }
  p.d_old_h = (wanted & 1) != 0 ? memory(4) : nullptr;
  p.d_input = (wanted & 2) != 0 && x > 0 ? memory(5) : nullptr;
  p.d_weights = blocks_of((wanted & 4) != 0 ? memory(6) : nullptr, h, h + x, size);
  // The operands of gradients that are not wanted may have any layout.
  if (p.d_old_h == nullptr && p.d_input == nullptr && !vectors) {
    p.weights = {memory(1) + size, h + x};
  }
  if (!p.d_weights.any_wanted() && !vectors) {
    p.old_h = {memory(2) + size, 1};
    p.input = {memory(3) + size, 0};
  }
  return p;
}

/// The products over all steps of an LSTM's sequence, as gradient_products.cpp lays them out.
inline BackwardProblem random_products_of_lstm(Random& random, bool vectors, int64_t wanted) {
  constexpr int kSize = sizeof(float);
  BackwardProblem p = random_problem(random, kSize, vectors, wanted & ~int64_t{1});
  const int64_t h = p.state_size, x = p.input_features;
  p.gates = 4 * h;
  p.d_gates_stride = whole_vectors(p.gates, kSize);
  p.weights_input = {memory(8), whole_vectors(x, kSize)};
  p.weights = p.weights_input;
  p.d_weights = {(wanted & 4) != 0 ? memory(6) : nullptr,
                 (wanted & 8) != 0 && x > 0 ? memory(9) : nullptr,
                 h,
                 x};
  if (p.d_weights.any_wanted()) {
    p.old_h = {memory(2), whole_vectors(h, kSize)};
    p.input = x > 0 ? Matrix{memory(3), whole_vectors(x, kSize)} : Matrix{};
  }
  return p;
}

/// For a random_problem() with or without `vectors`.
inline Shape shape_of(Arithmetic arithmetic, const BackwardProblem& p, bool vectors) {
  return {.work = Work::kBackward,
          .arithmetic = arithmetic,
          .batch = p.batch,
          .input_features = p.input_features,
          .state_size = p.state_size,
          .vector_rows = vectors};
}

/// The hopper candidates that support this shape.
inline std::vector<Candidate> hopper_candidates(const Shape& shape) {
  std::vector<Candidate> hopper;
  for (const Candidate& candidate : candidates(shape.work)) {
    if (candidate.group == Group::kHopper && supports(candidate, shape, test::kH200)) {
      hopper.push_back(candidate);
    }
  }
  return hopper;
}

template <Arithmetic kArithmetic>
cudaError_t launch(const BackwardProblem& p, const GradientPlan& plan) {
  EXPECT_GE(workspace_floats(kArithmetic, p, plan), 0);
  return launch_backward_wgmma<kArithmetic>(p, plan, reinterpret_cast<float*>(memory(7)), nullptr);
}

/// A step of any batch and sizes, laid out as by steps.cpp.
inline StepProblem random_step(Random& random, int size) {
  StepProblem step{};
  ForwardProblem& p = step;
  p.batch = random.log_uniform(1, 5000);
  p.input_features = random.below(16) == 0 ? 0 : random.log_uniform(1, 2500);
  p.state_size = random.log_uniform(1, 2500);
  p.input =
      p.input_features > 0 ? Matrix{memory(0), packed_stride(p.input_features, size)} : Matrix{};
  p.weights = {memory(1), packed_stride(p.state_size, size)};
  p.weights_input = {memory(4), packed_stride(p.input_features, size)};
  p.old_h = {memory(2), packed_stride(p.state_size, size)};
  step.next_h = {memory(3), p.old_h.stride};
  return step;
}

/// A sequence of one step, whose matrices are the program's: contiguous tensors, or views whose
/// rows start anywhere.
inline OneStepProblem random_one_step(Random& random, int size) {
  OneStepProblem p{random_step(random, size)};
  if (random.below(4) == 0) {
    p.input_features = p.state_size;
  }
  const auto matrix = [&](int index, int64_t columns) {
    const bool contiguous = random.below(4) > 0;
    return columns == 0 ? Matrix{}
                        : Matrix{memory(index) + (contiguous ? 0 : size * random.below(128)),
                                 columns + (contiguous ? 0 : random.below(20))};
  };
  p.input = matrix(0, p.input_features);
  p.weights = matrix(1, p.state_size);
  p.old_h = matrix(2, p.state_size);
  p.weights_input = matrix(4, p.input_features);
  return p;
}

/// What its plan is made for: the layout without the addresses.
inline ForwardProblem layout_of(ForwardProblem p) {
  for (Matrix* const matrix : {&p.input, &p.weights, &p.old_h, &p.weights_input}) {
    matrix->data =
        reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(matrix->data) % uintptr_t{128});
  }
  return p;
}

/// Puts copies in place of what a plan packs, as packed_rows.cpp does.
inline void pack(ForwardProblem& p, const ForwardPlan& plan) {
  const int size = element_size(plan.arithmetic);
  const bool one_matrix = plan.cell == CellType::kLltm;
  const ForwardPacks& packs = plan.packs;
  const auto copy = [&](bool wanted, Matrix& matrix, int index, int64_t columns) {
    matrix = wanted ? Matrix{memory(index), packed_stride(columns, size)} : matrix;
  };
  p.input_lead = packs.input_lead;
  copy(packs.input, p.input, 5, p.input_columns());
  copy(packs.old_h, p.old_h, 6, p.state_size);
  copy(packs.weights, p.weights, 7, p.state_size + (one_matrix ? p.input_features : 0));
  copy(packs.weights_input && !one_matrix, p.weights_input, 8, p.input_features);
  if (one_matrix) {
    p.weights_input = p.weights.from(p.state_size, size);
  }
}

/// For a step whose matrices are packed already.
inline Shape shape_of(Arithmetic arithmetic,
                      const StepProblem& step,
                      CellType cell = CellType::kLltm) {
  return {.work = Work::kStep,
          .cell = cell,
          .arithmetic = arithmetic,
          .batch = step.batch,
          .input_features = step.input_features,
          .state_size = step.state_size};
}

}  // namespace lltm::cuda
