// The threads that run the steps of a sequence together on the CPU. Run under ThreadSanitizer by
// make sanitize SANITIZER=thread, which does not see the threads of at::parallel_for.
#include "cpu/fused/step_team.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace lltm::cpu {
namespace {

class Helpers {
 public:
  Helpers(StepTeam& team, int64_t threads) {
    for (int64_t index = 1; index < threads; ++index) {
      threads_.emplace_back([&team, index] { team.help(index); });
    }
  }
  ~Helpers() {
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }

 private:
  std::vector<std::thread> threads_;
};

/// Runs kernels whose tasks read what all tasks of the previous kernel wrote.
void expect_every_task_once(StepTeam& team, int turns) {
  constexpr int64_t kTasks = 9;
  std::vector<int64_t> values(kTasks, 1), previous(kTasks);
  std::vector<int> calls(kTasks, 0);
  for (int turn = 0; turn < turns; ++turn) {
    const int64_t tasks = turn % (kTasks + 1);
    std::swap(values, previous);
    std::fill(values.begin(), values.end(), 1);
    team.share(tasks, 1 + turn % 6, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        ++calls[task];
        values[task] = 1 + *std::max_element(previous.begin(), previous.end()) % 1000;
      }
    });
    const int64_t expected = 1 + *std::max_element(previous.begin(), previous.end()) % 1000;
    for (int64_t task = 0; task < kTasks; ++task) {
      ASSERT_EQ(calls[task], task < tasks ? 1 : 0) << "turn " << turn << ", task " << task;
      ASSERT_EQ(values[task], task < tasks ? expected : 1) << "turn " << turn << ", task " << task;
      calls[task] = 0;
    }
  }
}

TEST(StepTeam, RunsEveryTaskOnceAndTheKernelsInOrder) {
  constexpr int64_t kThreads = 4;
  StepTeam team(kThreads);
  const Helpers helpers(team, kThreads);
  team.lead([&] { expect_every_task_once(team, 3000); });
}

TEST(StepTeam, SharesAmongItsThreads) {
  constexpr int64_t kThreads = 3;
  StepTeam team(kThreads);
  const Helpers helpers(team, kThreads);
  // A task waits for those of the other threads to begin, so one thread alone would not return.
  team.lead([&] {
    std::atomic<int64_t> begun{0};
    team.share(kThreads, kThreads, [&](int64_t begin, int64_t end) {
      ASSERT_EQ(end - begin, 1);
      for (++begun; begun < kThreads;) {
        std::this_thread::yield();
      }
    });
  });
}

TEST(StepTeam, NeedsNoHelpers) {
  StepTeam team(4);
  team.lead([&] { expect_every_task_once(team, 100); });
  const Helpers late(team, 4);  // They find that the steps have ended.
}

TEST(StepTeam, EndsIfTheLeaderThrows) {
  StepTeam team(3);
  const Helpers helpers(team, 3);
  EXPECT_THROW(team.lead([&] {
    expect_every_task_once(team, 10);
    throw std::runtime_error("out of memory");
  }),
               std::runtime_error);
}

}  // namespace
}  // namespace lltm::cpu
