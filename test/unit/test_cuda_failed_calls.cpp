// A launch or a query that fails leaves no state behind. Without a GPU, every call of the CUDA
// runtime and driver is made to fail in turn.
#include "cuda/kernels/forward/kernels.h"
#include "cuda/runtime/device_facts.h"
#include "cuda/runtime/driver.h"
#include "cuda/runtime/tensor_maps.h"
#include "device_facts.h"
#include "fake_cuda.h"
#include "launch_problems.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <utility>

namespace lltm::cuda {
namespace {

using test::fake_cuda;
using test::kH200;

/// Every call of the runtime and of the driver fails in turn. `launch` then returns an error, and
/// does its work when it is called again. Each attempt has a new context, about which nothing is
/// known, and a thread without tensor maps.
template <typename Launch>
void expect_failures_leave_nothing(const Launch& launch) {
  static unsigned long long context = 1;
  std::set<int> launches;
  int failures = 0;
  for (bool has_failed = true; has_failed; ++failures) {
    SCOPED_TRACE("call " + std::to_string(failures));
    fake_cuda() = {.context = ++context, .calls_before_failure = failures};
    cudaError_t error = cudaSuccess, next_error = cudaSuccess;
    std::thread([&] {
      error = launch();
      has_failed = std::exchange(fake_cuda(), {.context = context}).has_failed;
      next_error = launch();
    }).join();
    ASSERT_EQ(error != cudaSuccess, has_failed);
    ASSERT_EQ(next_error, cudaSuccess);
    launches.insert(fake_cuda().launches);
    ASSERT_TRUE(fake_cuda().violations.empty()) << fake_cuda().violations[0];
  }
  EXPECT_EQ(launches.size(), 1u) << "a call after a failure launches what any other does";
  // At least the context, its ID, three calls for a kernel, and the launch.
  EXPECT_GT(failures, 6);
}

template <Arithmetic kArithmetic>
void expect_failed_launches_leave_nothing() {
  if (!is_built(kArithmetic)) {
    return;
  }
  Random random;
  const BackwardProblem p =
      random_problem(random, element_size(kArithmetic), /*vectors=*/true, /*wanted=*/7);
  const Shape shape = shape_of(kArithmetic, p, /*vectors=*/true);
  int candidates = 0;
  for (const Candidate& candidate : hopper_candidates(shape)) {
    SCOPED_TRACE(candidate.name);
    expect_failures_leave_nothing(
        [&] { return launch<kArithmetic>(p, estimate(candidate, shape, kH200)->plan); });
    ++candidates;
  }
  const StepProblem step = random_step(random, element_size(kArithmetic));
  for (const Candidate& candidate : hopper_candidates(shape_of(kArithmetic, step))) {
    SCOPED_TRACE(candidate.name);
    expect_failures_leave_nothing([&] {
      return launch_forward_wgmma<kArithmetic, cell::Lltm>(
          step, candidate.tile, /*ranks=*/1, nullptr);
    });
    ++candidates;
  }
  EXPECT_GT(candidates, 2);
}

TEST(FailedCalls, OfLaunchesLeaveNothingBehind) {
  expect_failed_launches_leave_nothing<Arithmetic::kFloat32>();
  expect_failed_launches_leave_nothing<Arithmetic::kTf32>();
  expect_failed_launches_leave_nothing<Arithmetic::kFloat16>();
  expect_failed_launches_leave_nothing<Arithmetic::kBFloat16>();
}

TEST(FailedCalls, OfQueriesAreMadeAgain) {
  cudaDeviceProp properties{};
  properties.multiProcessorCount = 132;
  properties.sharedMemPerBlockOptin = 227 * 1024;
  properties.sharedMemPerMultiprocessor = 228 * 1024;
  properties.reservedSharedMemPerBlock = 1024;
  properties.major = 9;
  expect_failures_leave_nothing([&] {
    fake_cuda().most_threads = kThreadsWithWgmma;
    DeviceFacts facts;
    const cudaError_t error = device_facts(properties, &facts);
    if (error == cudaSuccess) {
      EXPECT_TRUE(facts.wgmma);
      EXPECT_EQ(facts.resident, (decltype(facts.resident){132, 100, 99, 100}));
      EXPECT_EQ(facts.resident_by_two, (decltype(facts.resident_by_two){264, 200, 198, 200}));
    }
    return error;
  });
}

TEST(FailedCalls, AMapThatCouldNotBeMadeIsMadeAgain) {
  const BoxesOf boxes{.arithmetic = Arithmetic::kFloat16,
                      .matrix = {memory(0), 64},
                      .rows = 100,
                      .columns = 64,
                      .box_rows = 64,
                      .box_columns = 64};
  // The current context, its ID, and the map.
  for (int failing = 0; failing < 3; ++failing) {
    std::thread([&] {
      CUtensorMap map;
      fake_cuda() = {.calls_before_failure = failing};
      EXPECT_FALSE(describe(&map, boxes));
      for (int maps : {1, 1}) {
        EXPECT_TRUE(describe(&map, boxes));
        EXPECT_EQ(fake_cuda().maps, maps);
      }
    }).join();
  }
}

TEST(FailedCalls, AFunctionOfTheDriverIsLookedUpUntilItIsFound) {
  DriverFunction<decltype(&cuLaunchKernelEx)> launch_kernel("cuLaunchKernelEx");
  fake_cuda() = {.calls_before_failure = 0};
  EXPECT_EQ(launch_kernel.get(), nullptr);
  EXPECT_NE(launch_kernel.get(), nullptr);
}

}  // namespace
}  // namespace lltm::cuda
