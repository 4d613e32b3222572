// The ring of slots in shared memory that chunks of K pass through. A kernel or its product sets
// the number of slots.
#pragma once

#include "../ptx/barrier.cuh"

namespace lltm::cuda {

/// One thread's position in a ring of slots. Each slot has two barriers: all writers arrive at
/// `full`, and all readers at `empty`. Writers and readers visit the slots in the same order. Where
/// others rewrite what has been written, slots have more barriers.
template <int kSlots_, int kSlotBytes_, int kBarriers = 2>
class Ring {
 public:
  static constexpr int kSlots = kSlots_, kSlotBytes = kSlotBytes_;
  static constexpr int kBytes = kSlots * kSlotBytes, kBarrierBytes = kSlots * kBarriers * 8;

  LLTM_DEVICE Ring(uint32_t data, uint32_t barriers) : first_(data), barriers_(barriers) {}

  /// Initializes the barriers, each for as many arrivals. One thread calls it, before a barrier of
  /// all threads that use the ring.
  template <typename... Arrivals>
  LLTM_DEVICE void prepare(Arrivals... arrivals) const {
    static_assert(sizeof...(arrivals) == kBarriers);
    for (int i = 0; i < kSlots; ++i) {
      uint32_t barrier = barriers_ + i * kBarriers * 8;
      ((init_barrier(barrier, arrivals), barrier += 8), ...);
    }
  }
  LLTM_DEVICE int slot() const { return slot_; }
  LLTM_DEVICE uint32_t data() const { return first_ + slot_ * kSlotBytes; }
  LLTM_DEVICE uint32_t full() const { return barrier(0); }
  LLTM_DEVICE uint32_t empty() const { return barrier(1); }
  LLTM_DEVICE uint32_t barrier(int which) const {
    return barriers_ + (slot_ * kBarriers + which) * 8;
  }
  LLTM_DEVICE void wait(uint32_t barrier) const { wait_phase(barrier, parity_); }
  LLTM_DEVICE void wait_full() const { wait(full()); }
  // A newly initialized barrier has completed the phase before its first.
  LLTM_DEVICE void wait_empty() const { wait_phase(empty(), parity_ ^ 1); }
  LLTM_DEVICE void advance() {
    if (++slot_ == kSlots) {
      slot_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  uint32_t first_, barriers_;
  int slot_ = 0;
  uint32_t parity_ = 0;
};

}  // namespace lltm::cuda
