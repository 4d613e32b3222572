// The ring of slots in shared memory that chunks of K pass through.
#pragma once

#include "../ptx/barrier.cuh"

namespace lltm::cuda {

/// One thread's position in a ring of slots. Each slot has two barriers: all writers arrive at
/// `full`, and all readers at `empty`. Writers and readers visit the slots in the same order.
template <int kSlots_, int kSlotBytes_>
class Ring {
 public:
  static constexpr int kSlots = kSlots_, kSlotBytes = kSlotBytes_;
  static constexpr int kBytes = kSlots * kSlotBytes, kBarrierBytes = kSlots * 16;

  __device__ __forceinline__ Ring(uint32_t data, uint32_t barriers)
      : first_(data), barriers_(barriers) {}

  /// Initializes the barriers. One thread calls it, before a barrier of all threads that use the
  /// ring.
  __device__ __forceinline__ void prepare(int writers, int readers) const {
    for (int i = 0; i < kSlots; ++i) {
      init_barrier(barriers_ + i * 16, writers);
      init_barrier(barriers_ + i * 16 + 8, readers);
    }
  }
  __device__ __forceinline__ int slot() const { return slot_; }
  __device__ __forceinline__ uint32_t data() const { return first_ + slot_ * kSlotBytes; }
  __device__ __forceinline__ uint32_t full() const { return barriers_ + slot_ * 16; }
  __device__ __forceinline__ uint32_t empty() const { return full() + 8; }
  __device__ __forceinline__ void wait_full() const { wait_phase(full(), parity_); }
  // A newly initialized barrier has completed the phase before its first.
  __device__ __forceinline__ void wait_empty() const { wait_phase(empty(), parity_ ^ 1); }
  __device__ __forceinline__ void advance() {
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
