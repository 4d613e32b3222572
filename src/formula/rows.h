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
  Rows(const SequenceArguments& arguments, int64_t steps, bool reverse)
      : lengths_(or_undefined(arguments.lengths)),
        reset_(or_undefined(arguments.reset)),
        steps_(steps),
        reverse_(reverse) {}

  int64_t steps() const { return steps_; }

  /// The time of the k-th step that is run. Its own inverse.
  int64_t time_of(int64_t k) const { return reverse_ ? steps_ - 1 - k : k; }

  /// Stacks tensors like like[0], one for each step that was run, in the order of time.
  Tensor in_time(std::vector<Tensor> of_steps, const Tensor& like) const {
    return stacked(std::move(of_steps), reverse_, like);
  }
  /// The same for steps that were visited in the reverse order.
  Tensor in_time_backward(std::vector<Tensor> of_steps, const Tensor& like) const {
    return stacked(std::move(of_steps), !reverse_, like);
  }

  /// `yes` in the rows that are longer than t, else `no`.
  Tensor where_running(int64_t t, const Tensor& yes, const Tensor& no) const {
    return lengths_.defined() ? at::where(running(t), yes, no) : yes;
  }
  Tensor zero_unless_running(int64_t t, const Tensor& tensor) const {
    return lengths_.defined() ? at::where(running(t), tensor, 0) : tensor;
  }
  /// The same for the steps (T, N, columns) of all times.
  Tensor zero_unless_running(const Tensor& of_steps) const {
    if (!lengths_.defined()) {
      return of_steps;
    }
    return at::where(lengths_.gt(times()).unsqueeze(2), of_steps, 0);
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

  /// [h | input] of every step (T, N, H + I): the h that the step started from, and its input.
  Tensor h_and_input(const Tensor& output, const Tensor& h0, const Tensor& input) const {
    const Tensor first = h0.unsqueeze(0);
    // The output of the step that was run before, or h0 in each row's first step.
    Tensor old_h = reverse_ ? at::cat({output, first}).narrow(0, 1, steps_)
                            : at::cat({first, output}).narrow(0, 0, steps_);
    if (reverse_ && lengths_.defined()) {
      old_h = at::where(lengths_.eq(times().add(1)).unsqueeze(2), h0, old_h);
    }
    if (reset_.defined()) {
      old_h = at::where(reset_.unsqueeze(2).logical_not(), old_h, 0);
    }
    return zero_unless_running(at::cat({old_h, input}, 2));
  }

  /// The gradients of h_and_input(): those of output, h0 and input.
  struct Gradients {
    Tensor output;
    Tensor h0;
    Tensor input;
  };
  Gradients h_and_input_backward(const Tensor& gradient, const c10::SymInt& state_size) const {
    const Tensor running = zero_unless_running(gradient);
    const c10::SymInt width = gradient.sym_size(2);
    Tensor d_old_h = running.slice_symint(/*dim=*/2, 0, state_size);
    if (reset_.defined()) {
      d_old_h = at::where(reset_.unsqueeze(2).logical_not(), d_old_h, 0);
    }
    const Tensor none = d_old_h.new_zeros_symint({1, d_old_h.sym_size(1), state_size});
    Tensor d_h0 = none.squeeze(0);
    if (reverse_ && lengths_.defined()) {
      const Tensor is_first = lengths_.eq(times().add(1)).unsqueeze(2);
      d_h0 = at::where(is_first, d_old_h, 0).sum(0);
      d_old_h = at::where(is_first, 0, d_old_h);
    }
    const Tensor of_all = reverse_ ? at::cat({none, d_old_h}) : at::cat({d_old_h, none});
    return {of_all.narrow(0, reverse_ ? 0 : 1, steps_),
            d_h0 + of_all.select(0, reverse_ ? steps_ : 0),
            running.slice_symint(/*dim=*/2, state_size, width)};
  }

 private:
  static Tensor stacked(std::vector<Tensor> of_steps, bool backward, const Tensor& like) {
    if (of_steps.empty()) {
      return at::empty_like(like);
    }
    if (backward) {
      std::reverse(of_steps.begin(), of_steps.end());
    }
    return at::stack(of_steps);
  }
  Tensor running(int64_t t) const { return lengths_.gt(t).unsqueeze(1); }
  Tensor times() const { return at::arange(steps_, lengths_.options()).unsqueeze(1); }

  Tensor lengths_;
  Tensor reset_;
  int64_t steps_;
  bool reverse_;
};

inline int64_t number_of(const c10::SymInt& steps) {
  return steps.guard_int(__FILE__, __LINE__);
}

inline Tensor state_or_zeros(const std::optional<Tensor>& state,
                             const Tensor& input,
                             const SequenceSizes<c10::SymInt>& sizes) {
  return is_given(state) ? *state : input.new_zeros_symint({sizes.batch, sizes.state_size});
}

/// The sum of a.T @ b over all steps, for a and b of (T, N, columns).
inline Tensor sum_of_products(const Tensor& a, const Tensor& b) {
  // flatten() has no rule in the legacy vmap.
  const auto matrix = [](const Tensor& of_steps) {
    return of_steps.reshape_symint(
        {of_steps.sym_size(0) * of_steps.sym_size(1), of_steps.sym_size(2)});
  };
  return matrix(a).t().matmul(matrix(b));
}

}  // namespace lltm::formula
