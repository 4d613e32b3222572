// Shared by the tests of failed allocations: a counter that makes an allocator fail, calls of every
// operator, and the expectations for a call in which an allocation fails.
#pragma once

#include "lltm/lltm.h"
#include "lltm_testing/cell_reference.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace lltm::test {

/// Makes an allocator fail at a given allocation, and counts its live allocations. Thread-safe.
class Refusals {
 public:
  static constexpr const char* kMessage = "the test's allocator refuses";

  /// Called before every allocation. Raises if it is the one that fails.
  void allow() { TORCH_CHECK_WITH(OutOfMemoryError, before_refusal_-- != 0, kMessage); }
  void allocated() { ++alive_; }
  void released() { --alive_; }

  /// Makes the allocation after this many others fail.
  void refuse(int64_t allocation) { before_refusal_ = allocation; }
  void refuse_none() { before_refusal_ = std::numeric_limits<int64_t>::max(); }
  bool has_refused() const { return before_refusal_ < 0; }
  int64_t alive() const { return alive_; }

 private:
  std::atomic<int64_t> before_refusal_ = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> alive_ = 0;
};

using Tensors = std::vector<at::Tensor>;

struct CallCase {
  std::string name;
  std::function<Tensors(const Arguments&)> run;
  int64_t gates = 3;  // those of the arguments: 4 are an LSTM's
};

inline void PrintTo(const CallCase& call, std::ostream* os) {
  *os << call.name;
}

template <typename Tuple>
Tensors list(const Tuple& results) {
  return std::apply([](const auto&... result) { return Tensors{result...}; }, results);
}

inline Tensors run_forward(const Arguments& a) {
  return list(call_forward(a));
}

inline Tensors run_backward(const Arguments& a) {
  // Any gates will do; this expression needs no allocation that might fail.
  return list(backward(a.old_h,
                       a.old_cell,
                       a.old_cell,
                       a.weights.narrow(1, 0, 1).t().expand({a.input.size(0), -1}),
                       a.input,
                       a.weights,
                       a.bias,
                       a.old_h,
                       {true, true, true, true, true}));
}

inline Tensors run_autograd(const Arguments& a) {
  const Arguments leaves{a.input.detach().requires_grad_(),
                         a.weights.detach().requires_grad_(),
                         a.bias->detach().requires_grad_(),
                         a.old_h.detach().requires_grad_(),
                         a.old_cell.detach().requires_grad_()};
  const auto [new_h, new_cell, gates] = call_forward(leaves);
  return torch::autograd::grad(
      {new_h, new_cell},
      {leaves.input, leaves.weights, *leaves.bias, leaves.old_h, leaves.old_cell},
      {a.old_h, a.old_cell});
}

/// Three equal steps.
inline at::Tensor steps_of(const at::Tensor& tensor) {
  return tensor.unsqueeze(0).expand({3, -1, -1});
}

/// Lengths 0, 1, 2, 3, 0, ... for the rows of a batch.
inline at::Tensor lengths_of(const Arguments& a) {
  return at::arange(a.input.size(0), a.input.options().dtype(at::kLong)).remainder_(4);
}

/// Resets every row at its second step.
inline at::Tensor reset_of(const Arguments& a) {
  at::Tensor reset = at::zeros({3, a.input.size(0)}, a.input.options().dtype(at::kBool));
  reset[1].fill_(true);
  return reset;
}

inline Tensors run_sequence(const Arguments& a) {
  return with_sequence(a, [&](auto forward, auto, auto, const auto&... weights) {
    return list(forward(steps_of(a.input),
                        weights...,
                        a.bias,
                        a.old_h,
                        a.old_cell,
                        {},
                        {},
                        /*reverse=*/false,
                        /*keep=*/false));
  });
}

inline Tensors run_kept_sequence(const Arguments& a) {
  return with_sequence(a, [&](auto forward, auto, auto, const auto&... weights) {
    return list(forward(steps_of(a.input),
                        weights...,
                        a.bias,
                        a.old_h,
                        a.old_cell,
                        lengths_of(a),
                        reset_of(a),
                        /*reverse=*/true,
                        /*keep=*/true));
  });
}

inline Tensors run_sequence_backward(const Arguments& a) {
  // Any gates will do, as for backward.
  const at::Tensor states = steps_of(a.old_cell);
  const at::Tensor gates = a.weights.narrow(1, 0, 1).t().expand({3, a.input.size(0), -1});
  return with_sequence(a, [&](auto, auto backward, auto mask, const auto&... weights) {
    mask.fill(true);
    return list(backward(/*grad_output=*/states,
                         /*grad_h_n=*/a.old_h,
                         /*grad_c_n=*/a.old_cell,
                         /*grad_cells=*/states,
                         /*output=*/states,
                         /*cells=*/states,
                         gates,
                         steps_of(a.input),
                         weights...,
                         a.bias,
                         a.old_h,
                         a.old_cell,
                         lengths_of(a),
                         reset_of(a),
                         /*reverse=*/false,
                         mask));
  });
}

inline Tensors run_sequence_autograd(const Arguments& a) {
  return with_sequence(a, [&](auto forward, auto, auto, const auto&... weights) {
    // Leaves and not views of one: after an error, autograd's queue keeps what a second branch of
    // the graph was to receive until the next call.
    const auto run = [&](const at::Tensor& input, const auto&... leaves) {
      const auto results =
          forward(input, leaves..., a.bias, a.old_h, a.old_cell, {}, {}, false, false);
      return torch::autograd::grad({std::get<0>(results)}, {input, leaves...}, {steps_of(a.old_h)});
    };
    return run(steps_of(a.input).detach().requires_grad_(), weights.detach().requires_grad_()...);
  });
}

inline const std::vector<CallCase> kCallCases = {{"forward", run_forward},
                                                 {"backward", run_backward},
                                                 {"autograd", run_autograd},
                                                 {"sequence", run_sequence},
                                                 {"kept_sequence", run_kept_sequence},
                                                 {"sequence_backward", run_sequence_backward},
                                                 {"sequence_autograd", run_sequence_autograd},
                                                 {"lstm", run_sequence, 4},
                                                 {"kept_lstm", run_kept_sequence, 4},
                                                 {"lstm_backward", run_sequence_backward, 4},
                                                 {"lstm_autograd", run_sequence_autograd, 4}};

/// Waits up to a minute for at most this many live allocations: autograd's threads may release the
/// tensors of a failed call after it has raised, and on a busy machine those of earlier calls, too.
inline bool soon_alive(const Refusals& refusals, int64_t count) {
  for (int i = 0; i < 60'000 && refusals.alive() > count; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return refusals.alive() <= count;
}

/// The number of live allocations once it no longer changes: autograd's threads may also release
/// the tensors of an earlier call, or of an earlier test, late.
inline int64_t settled_alive(const Refusals& refusals) {
  int64_t alive = 0;
  do {
    alive = refusals.alive();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  } while (refusals.alive() != alive);
  return alive;
}

/// Makes every allocation of a call fail in turn, and checks that the call raises and leaks
/// nothing, and that the next call is correct.
inline void expect_failures_leave_nothing(const CallCase& call,
                                          const Arguments& arguments,
                                          Refusals& refusals) {
  // Run twice, because what the libraries keep from a first call is not a leak.
  call.run(arguments);
  const Tensors right = call.run(arguments);
  const int64_t alive = settled_alive(refusals);
  int64_t refused = 0;
  while (true) {
    SCOPED_TRACE("allocation " + std::to_string(refused));
    refusals.refuse(refused);
    std::string message;
    try {
      call.run(arguments);
    } catch (const c10::OutOfMemoryError& error) {
      message = error.what_without_backtrace();
    }
    const bool has_refused = refusals.has_refused();
    refusals.refuse_none();
    if (!has_refused) {
      break;
    }
    EXPECT_EQ(message, Refusals::kMessage);
    EXPECT_TRUE(soon_alive(refusals, alive)) << refusals.alive() - alive << " allocations leaked";
    const Tensors next = call.run(arguments);
    for (size_t k = 0; k < right.size(); ++k) {
      EXPECT_TRUE(at::equal(next[k], right[k])) << "result " << k << " of the next call";
    }
    ASSERT_FALSE(testing::Test::HasFailure());
    ++refused;
  }
  EXPECT_GE(refused, static_cast<int64_t>(right.size()));
}

}  // namespace lltm::test
