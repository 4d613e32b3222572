// Every allocation of a call on the CPU fails in turn.
#include "failed_allocations.h"

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

namespace lltm::test {
namespace {

/// PyTorch's CPU allocator, except that it refuses some requests.
class RefusingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    refusals.allow();
    void* const memory = base_.raw_allocate(bytes);
    if (memory != nullptr) {
      refusals.allocated();
    }
    // The memory is its own context, because ATen's products allocate raw pointers.
    return {memory, memory, &release, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  /// Replaces the CPU allocator for the rest of the process, as tensors may outlive a test.
  static RefusingAllocator& installed() {
    static RefusingAllocator* const allocator = [] {
      auto* const refusing = new RefusingAllocator;
      c10::SetCPUAllocator(refusing, /*priority=*/1);
      return refusing;
    }();
    return *allocator;
  }

  Refusals refusals;

 private:
  static void release(void* memory) {
    if (memory != nullptr) {
      installed().refusals.released();
      installed().base_.raw_deallocate(memory);
    }
  }

  c10::Allocator& base_ = *c10::GetCPUAllocator();
};

class FailedAllocations
    : public testing::TestWithParam<std::tuple<CallCase, at::ScalarType, Sizes>> {};

TEST_P(FailedAllocations, LeaveNothingBehind) {
  const auto& [call, dtype, sizes] = GetParam();
  RefusingAllocator& allocator = RefusingAllocator::installed();
  const Arguments arguments = random_arguments(sizes, dtype, call.gates);
  const int before = at::get_num_threads();
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    expect_failures_leave_nothing(call, arguments, allocator.refusals);
  }
  at::set_num_threads(before);
}

std::string failed_allocations_name(
    const testing::TestParamInfo<FailedAllocations::ParamType>& info) {
  const auto& [call, dtype, sizes] = info.param;
  return call.name + "_" + c10::toString(dtype) + "_" + std::to_string(sizes.batch);
}

INSTANTIATE_TEST_SUITE_P(OnTheCPU,
                         FailedAllocations,
                         testing::Combine(testing::ValuesIn(kCallCases),
                                          testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                                          testing::Values(Sizes{3, 5, 7}, Sizes{33, 17, 64})),
                         failed_allocations_name);

}  // namespace
}  // namespace lltm::test
