// What the threads of a block that finish elements have in common, forward and backward.
//
// A warp finishes elements of 8 columns, one unit, and of four rows of a group: the even or the odd
// ones, as the sums of m16n8 lie. A thread has one column of one row of it, and of as many such
// sets as it takes. It reads and writes its numbers one by one, so rows may start anywhere.
#pragma once

#include "../../ptx/cp_async.cuh"
#include "../../ptx/global.cuh"
#include "../../ptx/packed.cuh"
#include "../../ptx/shared.cuh"
#include "../recurrence/block_rows.cuh"
#include "grid.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace lltm::cuda {

/// Tensors' numbers in registers.
template <typename Element>
LLTM_DEVICE float number_of(const Element& element) {
  return static_cast<float>(element);
}
template <typename Element>
LLTM_DEVICE uint32_t bits_of(float value) {
  if constexpr (std::is_same_v<Element, float>) {
    return __float_as_uint(value);
  } else {
    return Packed<Element>::pack(value, 0.0f);
  }
}
template <typename Element>
LLTM_DEVICE Element rounded(float value) {
  if constexpr (std::is_same_v<Element, float>) {
    return value;
  } else {
    return Element(static_cast<uint16_t>(bits_of<Element>(value)), Element::from_bits());
  }
}
template <typename Element>
LLTM_DEVICE void store_number(Element* to, float value, bool exists) {
  if constexpr (std::is_same_v<Element, float>) {
    store_word(to, __float_as_uint(value), exists);
  } else {
    store_low_half(to, bits_of<Element>(value), exists);
  }
}

/// The sets of elements of a block of kWarps warps that has kUnits units, of which a thread has
/// some.
template <int kWarps, int kUnits>
struct ElementSets {
  static constexpr int kSets = 2 * kUnits;
  static constexpr int kElementWarps = std::min(kWarps, kSets);  // that have any
  static constexpr int kElements = (kSets + kWarps - 1) / kWarps;
  static constexpr int kThreads = 32 * kElementWarps;
  static_assert(kElementWarps % 2 == 0);

  int warp, lane;
  int row[kElements], column[kElements];  // of a group's rows, and of the state
  bool has[kElements];                    // whether the set and the column exist

  LLTM_DEVICE ElementSets(int first_column, int state_size) {
    warp = static_cast<int>(threadIdx.x) / 32;
    lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      row[e] = 2 * (lane % 4) + parity();
      column[e] = first_column + 8 * unit(e) + lane / 4;
      has[e] = set(e) < kSets && column[e] < state_size;
    }
  }
  LLTM_DEVICE int set(int e) const { return warp + kElementWarps * e; }
  LLTM_DEVICE int parity() const { return warp % 2; }
  LLTM_DEVICE int unit(int e) const { return set(e) / 2 % kUnits; }
};

/// kWords numbers for each element that a thread reads some ticks ahead, by asynchronous copies to
/// words of its own. Of 16-bit numbers it copies the word that they are half of, or only its first
/// half: nothing behind a number is read. Which half it is depends on whether the time is odd, and
/// is the same for all words of a kind: kind_of(word), below kKinds. kWholeWords: a step has an
/// even number of them, in memory that starts with a word.
template <typename Element,
          int kWords,
          int kKinds,
          int kElements,
          int kThreads,
          bool kWholeWords = false>
class NumbersAhead {
 public:
  static constexpr int kTicks = 4;
  static constexpr int kTickBytes = kWords * kElements * kThreads * 4;
  static constexpr int kBytes = kTicks * kTickBytes;
  static constexpr bool kHalves = sizeof(Element) == 2;
  static_assert(kKinds * kElements <= 31);

  LLTM_DEVICE explicit NumbersAhead(uint32_t shared) : words_(shared + 4 * threadIdx.x) {}

  /// Says where a number of a kind is at time 0, and how far it is from time to time.
  LLTM_DEVICE void set(int kind, int e, const Element* at, int64_t time_stride) {
    if constexpr (kHalves) {
      const uint32_t half = reinterpret_cast<uintptr_t>(at) & 2;
      halves_ |= half << bit(kind, e);
      changes_ |= (static_cast<uint32_t>(time_stride) & 1) << 1 << bit(kind, e);
    }
  }
  LLTM_DEVICE void copy(int word, int kind, int e, const Element* from, int t, bool exists) {
    const uint32_t to = words_ + slot_ + offset(word, e);
    if constexpr (kHalves) {
      const uint32_t half = half_of(kind, e, t);
      copy_async<4>(to,
                    reinterpret_cast<const unsigned char*>(from) - half,
                    exists ? kWholeWords ? 4 : 2 + static_cast<int>(half) : 0);
    } else {
      copy_async<4>(to, from, exists ? 4 : 0);
    }
  }
  LLTM_DEVICE void commit() {
    commit_copies();
    slot_ = slot_ == (kTicks - 1) * kTickBytes ? 0 : slot_ + kTickBytes;
  }
  /// Waits for the tick that was copied to the place that is copied to next.
  LLTM_DEVICE void wait() { wait_copies<kTicks - 1>(); }
  LLTM_DEVICE float read(int word, int kind, int e, int t) const {
    const uint32_t at = words_ + slot_;
    if constexpr (kHalves) {
      return Packed<Element>::low(load_shared_half(at + half_of(kind, e, t) + offset(word, e)));
    } else {
      return __uint_as_float(load_shared(at + offset(word, e)));
    }
  }

 private:
  static LLTM_DEVICE int bit(int kind, int e) { return kind * kElements + e; }
  static LLTM_DEVICE int offset(int word, int e) { return (word * kElements + e) * kThreads * 4; }
  /// In bytes.
  LLTM_DEVICE uint32_t half_of(int kind, int e, int t) const {
    const uint32_t halves = !kWholeWords && (t & 1) != 0 ? halves_ ^ changes_ : halves_;
    return halves >> bit(kind, e) & 2;
  }

  uint32_t words_;
  int slot_ = 0;
  uint32_t halves_ = 0, changes_ = 0;  // shifted by one: a half has two bytes
};

/// What a thread keeps for each of its elements of each group from step to step, in shared memory.
template <int kWords, int kElements, int kThreads>
class KeptNumbers {
 public:
  static constexpr int kGroupBytes = kWords * kElements * kThreads * 4;

  LLTM_DEVICE explicit KeptNumbers(uint32_t shared) : words_(shared + 4 * threadIdx.x) {}
  LLTM_DEVICE float get(int word, int e, int group) const {
    return __uint_as_float(load_shared(at(word, e, group)));
  }
  LLTM_DEVICE void put(int word, int e, int group, float value) const {
    store_shared(at(word, e, group), __float_as_uint(value));
  }

 private:
  LLTM_DEVICE uint32_t at(int word, int e, int group) const {
    return words_ + group * kGroupBytes + (word * kElements + e) * kThreads * 4;
  }
  uint32_t words_;
};

/// The rows of a team, of which there may be kGridRows.
class TeamRows {
 public:
  static constexpr int kMasks = kGridRows / 32;
  struct Mask {
    uint32_t of[kMasks];

    LLTM_DEVICE bool operator[](int row) const {
      return ((row < 32 ? of[0] : of[1]) >> row % 32 & 1) != 0;
    }
  };

  LLTM_DEVICE TeamRows(const RowsOfSequence& rows, int64_t first, int count, int steps)
      : rows_{BlockRows(rows, first, min(count, 32), steps),
              BlockRows(rows, first + 32, count - 32, steps)} {}
  /// Whether not all rows run at all times, or some are reset.
  static LLTM_DEVICE bool vary(const RowsOfSequence& rows) {
    return rows.lengths != nullptr || rows.reset != nullptr;
  }
  LLTM_DEVICE int longest() const { return max(rows_[0].longest(), rows_[1].longest()); }
  LLTM_DEVICE Mask running(int t) const { return {rows_[0].running(t), rows_[1].running(t)}; }
  LLTM_DEVICE void fetch_resets(int t, bool inside) {
    rows_[0].fetch_resets(t, inside);
    rows_[1].fetch_resets(t, inside);
  }
  LLTM_DEVICE Mask resets() const { return {rows_[0].resets(), rows_[1].resets()}; }

 private:
  BlockRows rows_[kMasks];
};

}  // namespace lltm::cuda
