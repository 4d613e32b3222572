// Every allocation of a call on CUDA fails in turn, in every group of kernels.
#include "failed_allocations.h"
#include "forced_path.h"
#include "lltm_testing/devices.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

namespace lltm::test {
namespace {

using torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator;
namespace caching = c10::cuda::CUDACachingAllocator;

/// PyTorch's CUDA allocator, except that it refuses some requests.
class RefusingCudaAllocator final : public CUDAPluggableAllocator {
 public:
  explicit RefusingCudaAllocator(caching::CUDAAllocator& base)
      : CUDAPluggableAllocator(
            [this](size_t bytes, int, cudaStream_t stream) {
              refusals.allow();
              void* const memory = base_.raw_alloc_with_stream(bytes, stream);
              refusals.allocated();
              return memory;
            },
            [this](void* memory, size_t, int, cudaStream_t) {
              refusals.released();
              base_.raw_delete(memory);
            }),
        base_(base) {}

  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(c10::kCUDA, c10::cuda::current_device());
    if (bytes == 0) {
      refusals.allow();
      return {nullptr, device};
    }
    void* const memory = raw_alloc(bytes);
    return {memory, memory, raw_deleter(), device};
  }

  // The base class's deleter belongs to the one allocator that a process may choose before its
  // first call.
  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  /// One for the process, as tensors may outlive a test.
  static RefusingCudaAllocator& instance() {
    static auto* const allocator = [] {
      at::globalContext().lazyInitDevice(at::kCUDA);
      return new RefusingCudaAllocator(*caching::get());
    }();
    return *allocator;
  }

  Refusals refusals;

 private:
  static void release(void* memory) { instance().raw_delete(memory); }

  caching::CUDAAllocator& base_;
};

/// Replaces PyTorch's allocator during its lifetime.
class Installed {
 public:
  explicit Installed(caching::CUDAAllocator& allocator)
      : previous_(caching::allocator.exchange(&allocator)) {}
  ~Installed() { caching::allocator.store(previous_); }
  Installed(const Installed&) = delete;
  Installed& operator=(const Installed&) = delete;

 private:
  caching::CUDAAllocator* const previous_;
};

using CudaCase = std::tuple<std::string, CallCase, at::ScalarType, Sizes>;

class FailedCudaAllocations : public testing::TestWithParam<CudaCase> {};

TEST_P(FailedCudaAllocations, LeaveNothingBehind) {
  LLTM_SKIP_UNLESS_TESTABLE(at::kCUDA);
  const auto& [path, call, dtype, sizes] = GetParam();
  const ForcedPath forced(path);
  RefusingCudaAllocator& allocator = RefusingCudaAllocator::instance();
  const Installed installed(allocator);
  const Arguments arguments =
      random_arguments(sizes, at::TensorOptions(at::kCUDA).dtype(dtype), call.gates);
  expect_failures_leave_nothing(call, arguments, allocator.refusals);
}

std::string cuda_case_name(const testing::TestParamInfo<CudaCase>& info) {
  const auto& [path, call, dtype, sizes] = info.param;
  return "CUDA_" + path + "_" + call.name + "_" + c10::toString(dtype) + "_" +
         std::to_string(sizes.batch);
}

// Few rows, rows that are packed first, and d_weights in parts.
INSTANTIATE_TEST_SUITE_P(
    OfEveryGroup,
    FailedCudaAllocations,
    testing::Combine(testing::Values("auto", "few_rows", "hopper", "tiles", "library"),
                     testing::ValuesIn(kCallCases),
                     testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                     testing::Values(Sizes{3, 5, 7}, Sizes{66, 33, 129}, Sizes{2048, 24, 72})),
    cuda_case_name);

}  // namespace
}  // namespace lltm::test
