// Threads that run the kernels of many short steps together.
#pragma once

#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

namespace lltm::cpu {

/// One thread leads: it runs the steps, and shares their kernels with the others, which help. When
/// the leader has done its own share of a kernel, it runs those that no other thread has begun. So
/// the leader waits only for work already started, and finishes alone if no helper arrives.
class StepTeam {
 public:
  explicit StepTeam(int64_t threads)
      : threads_(threads), shares_(std::make_unique<Share[]>(threads)) {}

  /// Calls steps(), which may call share().
  void lead(c10::function_ref<void()> steps) {
    const struct Ending {  // also if steps() throws
      ~Ending() { turn.store(kEnd, std::memory_order_release); }
      std::atomic<Turn>& turn;
    } ending{turn_};
    steps();
  }

  /// Helps until the leader's steps have ended. `index` is from 1 to threads - 1, and no two
  /// threads have the same.
  void help(int64_t index) {
    Turn turn = kStart;
    do {
      const uint32_t last = turn.number;
      wait_until([&] {
        turn = turn_.load(std::memory_order_acquire);
        return turn.number != last;
      });
      if (index < turn.shares) {
        run_share(index, turn);
      }
    } while (turn.shares > 0);
  }

  /// Calls kernel(begin, end) for the tasks [0, tasks), divided among at most `threads` threads.
  void share(int64_t tasks, int64_t threads, c10::function_ref<void(int64_t, int64_t)> kernel) {
    const int64_t shares = std::min({threads, threads_, tasks});
    if (shares < 2) {
      kernel(0, tasks);
      return;
    }
    kernel_ = kernel;
    tasks_ = tasks;
    const Turn turn{.number = turn_.load(std::memory_order_relaxed).number + 1,
                    .shares = static_cast<uint32_t>(shares)};
    turn_.store(turn, std::memory_order_release);
    for (int64_t i = 0; i < shares; ++i) {
      run_share(i, turn);
    }
    for (int64_t i = 0; i < shares; ++i) {
      wait_until([&] { return shares_[i].done.load(std::memory_order_acquire) == turn.number; });
    }
  }

 private:
  /// A kernel that is shared. Turns are numbered from 1.
  struct Turn {
    uint32_t number;
    uint32_t shares;
  };
  static constexpr Turn kStart{.number = 0, .shares = 1};
  static constexpr Turn kEnd{.number = ~uint32_t{0}, .shares = 0};
  static_assert(std::atomic<Turn>::is_always_lock_free);

  /// The last turn in which this share was begun and done, in a cache line of its own.
  struct alignas(64) Share {
    std::atomic<uint32_t> begun{0};
    std::atomic<uint32_t> done{0};
  };

  /// Runs a share, unless another thread has begun it. Until it is done, the leader does not go on
  /// to another turn.
  void run_share(int64_t i, Turn turn) {
    Share& share = shares_[i];
    uint32_t begun = share.begun.load(std::memory_order_relaxed);
    if (begun < turn.number && share.begun.compare_exchange_strong(begun, turn.number)) {
      kernel_(tasks_ * i / turn.shares, tasks_ * (i + 1) / turn.shares);
      share.done.store(turn.number, std::memory_order_release);
    }
  }

  /// Spins for about 20 us, the time of several short steps, and then lets other threads run.
  template <typename Condition>
  static void wait_until(const Condition& condition) {
    constexpr int kSpins = 1000;
    for (int i = 0; !condition(); ++i) {
      if (i < kSpins) {
        pause();
      } else {
        std::this_thread::yield();
      }
    }
  }
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  const int64_t threads_;
  std::unique_ptr<Share[]> shares_;
  // The turn and its kernel, in a cache line of their own.
  alignas(64) std::atomic<Turn> turn_{kStart};
  c10::function_ref<void(int64_t, int64_t)> kernel_;
  int64_t tasks_ = 0;
};

}  // namespace lltm::cpu
