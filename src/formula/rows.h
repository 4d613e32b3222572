// What the formulas of a sequence have in common: which rows run at a step, and lists of steps.
//
// Rows that have ended, and resets, are masked by where(), so that inputs and gradients beyond a
// row's length, and the state of a row of length 0, do not affect other results, even if they are
// NaN. The arguments of a step are masked, not only its results: the gradient of what where() drops
// is zero, but a step's derivative multiplies it, and 0 * NaN is NaN.
#pragma once

#include "../dispatch/optional_tensor.h"
#include "../operators/checks.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <c10/core/SymInt.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace lltm::formula {

using at::Tensor;

/// The tensor in the accumulation type.
inline Tensor accumulated(const Tensor& tensor) {
  return tensor.to(at::toOpMathType(tensor.scalar_type()));
}

/// 1 - tensor. The operator `-` would fill a tensor with ones and subtract in place, which fails in
/// tracers that run with autograd on: torch.scan and the export of a training step.
inline Tensor complement(const Tensor& tensor) {
  return at::rsub(tensor, 1);
}

/// A copy of columns [begin, end) of a matrix, because torch.scan saves it for its backward, and
/// refuses views of its inputs.
inline Tensor columns(const Tensor& matrix, const c10::SymInt& begin, const c10::SymInt& end) {
  return matrix.slice_symint(/*dim=*/1, begin, end).clone();
}

/// Which rows run at which step, and which of them are reset there.
class Rows {
 public:
  Rows(const std::optional<Tensor>& lengths,
       const std::optional<Tensor>& reset,
       int64_t steps,
       bool reverse)
      : lengths_(or_undefined(lengths)),
        reset_(or_undefined(reset)),
        steps_(steps),
        reverse_(reverse) {}

  int64_t steps() const { return steps_; }

  /// The time of the k-th step that is run. Its own inverse.
  int64_t time_of(int64_t k) const { return reverse_ ? steps_ - 1 - k : k; }

  /// Stacks tensors like like[0], one for each step that was run, in the order of time.
  Tensor in_time(std::vector<Tensor> steps, const Tensor& like) const {
    return stacked(std::move(steps), reverse_, like);
  }
  /// The same for steps that were visited in the reverse order.
  Tensor in_time_backward(std::vector<Tensor> steps, const Tensor& like) const {
    return stacked(std::move(steps), !reverse_, like);
  }

  /// `yes` in the rows that are longer than t, else `no`.
  Tensor where_running(int64_t t, const Tensor& yes, const Tensor& no) const {
    return lengths_.defined() ? at::where(running(t), yes, no) : yes;
  }
  Tensor zero_unless_running(int64_t t, const Tensor& tensor) const {
    return lengths_.defined() ? at::where(running(t), tensor, 0) : tensor;
  }
  /// The same for the steps (T, N, columns) of all times.
  Tensor zero_unless_running(const Tensor& steps) const {
    if (!lengths_.defined()) {
      return steps;
    }
    return at::where(lengths_.gt(times()).unsqueeze(2), steps, 0);
  }
  Tensor zero_where_reset(int64_t t, const Tensor& tensor) const {
    return reset_.defined() ? at::where(reset_.select(0, t).unsqueeze(1).logical_not(), tensor, 0)
                            : tensor;
  }

  /// The gradient of a result of step t: that from the following step, and the one that the caller
  /// passed.
  Tensor total(int64_t t, const Tensor& following, const std::optional<Tensor>& passed) const {
    return zero_unless_running(
        t, is_given(passed) ? following + accumulated(passed->select(0, t)) : following);
  }

  /// The state (T, N, H) that each step starts from, of the states after each step and the initial
  /// one (N, H): that after the step that was run before, or the initial one in each row's first
  /// step; zero after a reset, and beyond a row's length.
  Tensor old_states(const Tensor& states, const Tensor& initial) const {
    const Tensor first = initial.unsqueeze(0);
    Tensor old = reverse_ ? at::cat({states, first}).narrow(0, 1, steps_)
                          : at::cat({first, states}).narrow(0, 0, steps_);
    if (reverse_ && lengths_.defined()) {
      old = at::where(begins(), initial, old);
    }
    if (reset_.defined()) {
      old = at::where(reset_.unsqueeze(2).logical_not(), old, 0);
    }
    return zero_unless_running(old);
  }

  /// The gradients of the arguments of old_states().
  struct StateGradients {
    Tensor states;
    Tensor initial;
  };
  StateGradients old_states_backward(const Tensor& gradient) const {
    Tensor d_old = zero_unless_running(gradient);
    if (reset_.defined()) {
      d_old = at::where(reset_.unsqueeze(2).logical_not(), d_old, 0);
    }
    const Tensor none = d_old.new_zeros_symint({1, d_old.sym_size(1), d_old.sym_size(2)});
    Tensor d_initial = none.squeeze(0);
    if (reverse_ && lengths_.defined()) {
      d_initial = at::where(begins(), d_old, 0).sum(0);
      d_old = at::where(begins(), 0, d_old);
    }
    const Tensor all = reverse_ ? at::cat({none, d_old}) : at::cat({d_old, none});
    return {all.narrow(0, reverse_ ? 0 : 1, steps_),
            d_initial + all.select(0, reverse_ ? steps_ : 0)};
  }

  /// [h | input] of every step (T, N, H + I): the h that the step started from, and its input.
  Tensor h_and_input(const Tensor& output, const Tensor& h0, const Tensor& input) const {
    return at::cat({old_states(output, h0), zero_unless_running(input)}, 2);
  }

 private:
  static Tensor stacked(std::vector<Tensor> steps, bool backward, const Tensor& like) {
    if (steps.empty()) {
      return at::empty_like(like);
    }
    if (backward) {
      std::reverse(steps.begin(), steps.end());
    }
    return at::stack(steps);
  }
  Tensor running(int64_t t) const { return lengths_.gt(t).unsqueeze(1); }
  /// Where the reverse direction of a row begins, (T, N, 1).
  Tensor begins() const { return lengths_.eq(times().add(1)).unsqueeze(2); }
  Tensor times() const { return at::arange(steps_, lengths_.options()).unsqueeze(1); }

  Tensor lengths_;
  Tensor reset_;
  int64_t steps_;
  bool reverse_;
};

inline int64_t number_of(const c10::SymInt& steps) {
  return steps.guard_int(__FILE__, __LINE__);
}

/// The sum of a.T @ b over all steps, for a and b of (T, N, columns).
inline Tensor sum_of_products(const Tensor& a, const Tensor& b) {
  // flatten() has no rule in the legacy vmap.
  const auto matrix = [](const Tensor& steps) {
    return steps.reshape_symint({steps.sym_size(0) * steps.sym_size(1), steps.sym_size(2)});
  };
  return matrix(a).t().matmul(matrix(b));
}

}  // namespace lltm::formula
