// Every allocation of a call fails in turn: the call raises, leaves nothing behind, and the next
// one is right.
#include "cell_reference.h"
#include "lltm/lltm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <functional>
#include <limits>
#include <string>

namespace lltm::test {
namespace {

/// The CPU's allocator, but for one allocation that it refuses; counts those that are alive.
class RefusingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK_WITH(OutOfMemoryError, before_refusal_-- != 0, "the test's allocator refuses");
    void* const memory = base_.raw_allocate(bytes);
    alive_ += memory != nullptr;
    // The memory is its own context: ATen's products ask for bare pointers.
    return {memory, memory, &release, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  /// The allocation after this many others.
  void refuse(int64_t allocation) { before_refusal_ = allocation; }
  void refuse_none() { before_refusal_ = std::numeric_limits<int64_t>::max(); }
  bool has_refused() const { return before_refusal_ < 0; }
  int64_t alive() const { return alive_; }

  /// In place of the CPU's allocator for the rest of the process, as tensors may outlive a test.
  static RefusingAllocator& installed() {
    static RefusingAllocator* const allocator = [] {
      auto* const refusing = new RefusingAllocator;
      c10::SetCPUAllocator(refusing, /*priority=*/1);
      return refusing;
    }();
    return *allocator;
  }

 private:
  static void release(void* memory) {
    if (memory != nullptr) {
      --installed().alive_;
      installed().base_.raw_deallocate(memory);
    }
  }

  c10::Allocator& base_ = *c10::GetCPUAllocator();
  std::atomic<int64_t> before_refusal_ = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> alive_ = 0;
};

using Tensors = std::vector<at::Tensor>;

struct CallCase {
  std::string name;
  std::function<Tensors(const Arguments&)> run;
};

void PrintTo(const CallCase& call, std::ostream* os) {
  *os << call.name;
}

template <typename Tuple>
Tensors list(const Tuple& results) {
  return std::apply([](const auto&... result) { return Tensors{result...}; }, results);
}

Tensors run_forward(const Arguments& a) {
  return list(forward(a.input, a.weights, a.bias, a.old_h, a.old_cell));
}

Tensors run_backward(const Arguments& a) {
  // As good a workspace as any, and no call that might fail.
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

Tensors run_autograd(const Arguments& a) {
  const Arguments leaves{a.input.detach().requires_grad_(),
                         a.weights.detach().requires_grad_(),
                         a.bias->detach().requires_grad_(),
                         a.old_h.detach().requires_grad_(),
                         a.old_cell.detach().requires_grad_()};
  const auto [new_h, new_cell, gates] =
      forward(leaves.input, leaves.weights, leaves.bias, leaves.old_h, leaves.old_cell);
  return torch::autograd::grad(
      {new_h, new_cell},
      {leaves.input, leaves.weights, *leaves.bias, leaves.old_h, leaves.old_cell},
      {a.old_h, a.old_cell});
}

/// Steps alike.
at::Tensor steps_of(const at::Tensor& tensor) {
  return tensor.unsqueeze(0).expand({3, -1, -1});
}

/// 0, 1, 2, 3, 0, ... steps for the rows of a batch.
at::Tensor lengths_of(const Arguments& a) {
  return at::arange(a.input.size(0), at::kLong).remainder_(4);
}

/// The second step of every row is its first again.
at::Tensor reset_of(const Arguments& a) {
  at::Tensor reset = at::zeros({3, a.input.size(0)}, at::kBool);
  reset[1].fill_(true);
  return reset;
}

Tensors run_sequence(const Arguments& a) {
  return list(sequence(steps_of(a.input), a.weights, a.bias, a.old_h, a.old_cell));
}

Tensors run_kept_sequence(const Arguments& a) {
  return list(sequence(steps_of(a.input),
                       a.weights,
                       a.bias,
                       a.old_h,
                       a.old_cell,
                       lengths_of(a),
                       reset_of(a),
                       /*reverse=*/true,
                       /*keep=*/true));
}

Tensors run_sequence_backward(const Arguments& a) {
  // As good a workspace as any, as backward's.
  const at::Tensor states = steps_of(a.old_cell);
  const at::Tensor gates = a.weights.narrow(1, 0, 1).t().expand({3, a.input.size(0), -1});
  return list(sequence_backward(/*grad_output=*/states,
                                /*grad_h_n=*/a.old_h,
                                /*grad_c_n=*/a.old_cell,
                                /*grad_cells=*/states,
                                /*output=*/states,
                                /*cells=*/states,
                                gates,
                                steps_of(a.input),
                                a.weights,
                                a.bias,
                                a.old_h,
                                a.old_cell,
                                lengths_of(a),
                                reset_of(a),
                                /*reverse=*/false,
                                {true, true, true, true, true}));
}

Tensors run_sequence_autograd(const Arguments& a) {
  const at::Tensor input = steps_of(a.input).detach().requires_grad_();
  const at::Tensor weights = a.weights.detach().requires_grad_();
  const auto results = sequence(input, weights, a.bias, a.old_h, a.old_cell);
  return torch::autograd::grad({std::get<0>(results)}, {input, weights}, {steps_of(a.old_h)});
}

class FailedAllocations
    : public testing::TestWithParam<std::tuple<CallCase, at::ScalarType, Sizes>> {};

TEST_P(FailedAllocations, LeaveNothingBehind) {
  const auto& [call, dtype, sizes] = GetParam();
  RefusingAllocator& allocator = RefusingAllocator::installed();
  const Arguments arguments = random_arguments(sizes, dtype);
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    // Twice: what the libraries keep from a first call is no leak.
    call.run(arguments);
    const Tensors right = call.run(arguments);
    const int64_t alive = allocator.alive();
    int64_t refused = 0;
    while (true) {
      SCOPED_TRACE("allocation " + std::to_string(refused));
      allocator.refuse(refused);
      std::string message;
      try {
        call.run(arguments);
      } catch (const c10::Error& error) {
        message = error.what_without_backtrace();
      }
      const bool has_refused = allocator.has_refused();
      allocator.refuse_none();
      if (!has_refused) {
        break;
      }
      EXPECT_EQ(message, "the test's allocator refuses");
      EXPECT_EQ(allocator.alive(), alive);
      const Tensors next = call.run(arguments);
      for (size_t k = 0; k < right.size(); ++k) {
        EXPECT_TRUE(at::equal(next[k], right[k])) << "result " << k << " of the next call";
      }
      ASSERT_FALSE(HasFailure());
      ++refused;
    }
    EXPECT_GE(refused, static_cast<int64_t>(right.size()));
  }
}

std::string failed_allocations_name(
    const testing::TestParamInfo<FailedAllocations::ParamType>& info) {
  const auto& [call, dtype, sizes] = info.param;
  return call.name + "_" + c10::toString(dtype) + "_" + std::to_string(sizes.batch);
}

INSTANTIATE_TEST_SUITE_P(
    OnTheCPU,
    FailedAllocations,
    testing::Combine(testing::Values(CallCase{"forward", run_forward},
                                     CallCase{"backward", run_backward},
                                     CallCase{"autograd", run_autograd},
                                     CallCase{"sequence", run_sequence},
                                     CallCase{"kept_sequence", run_kept_sequence},
                                     CallCase{"sequence_backward", run_sequence_backward},
                                     CallCase{"sequence_autograd", run_sequence_autograd}),
                     testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                     testing::Values(Sizes{3, 5, 7}, Sizes{33, 17, 64})),
    failed_allocations_name);

}  // namespace
}  // namespace lltm::test
