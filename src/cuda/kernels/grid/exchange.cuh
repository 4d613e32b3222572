// How the blocks of a team exchange V: h, or in the backward the gradients of all gates.
//
// V of a step lies in a slot, as the fragments that the products take: a warp loads a granule of
// 512 contiguous bytes, 16 a lane. *The data is the flag*: a slot is full of 0xffffffff before it
// is written, and a lane loads its words until none of them is that. No word of V is: arithmetic
// and conversions make other NaNs. That takes half as long as a flag or a counter, which needs a
// release, that waits for all of a thread's stores, and a second trip through L2.
//
// V of step k is written to slot k % 32. A block that has all of V of k - 1 knows that each block
// of the team has read all of k - 2, so a thread that writes words of V of k also empties these of
// k - 2, for step k + 30. Its fence, at the latest after step k + 14, precedes its words of k + 15,
// which the lane that will look for the same words in k + 30 sees in step k + 16, and has a fence
// of its own, at the latest after k + 29. Only then does it look there. Fences are as rare as the
// number of slots allows, since one waits for all of a thread's stores.
#pragma once

#include "../../ptx/relaxed.cuh"
#include "grid.h"

#include <cstdint>

namespace lltm::cuda {

constexpr uint32_t kEmptyWord = 0xffffffffu;

/// The slots of a team, of kBytes for each group of rows.
template <int kBytes>
class GridSlots {
 public:
  /// The next step is 0.
  LLTM_DEVICE GridSlots(unsigned char* slots, const GridTeams& grid, int team)
      : first_(slots + int64_t{team} * kGridSlots * grid.groups * kBytes),
        slot_bytes_(grid.groups * kBytes),
        before_((kGridSlots - 1) * slot_bytes_),
        two_before_(before_ - slot_bytes_) {}

  /// V of the current step, the one before, or two before, of a group.
  LLTM_DEVICE unsigned char* now(int group) const { return at(now_, group); }
  LLTM_DEVICE unsigned char* before(int group) const { return at(before_, group); }
  LLTM_DEVICE unsigned char* two_before(int group) const { return at(two_before_, group); }

  LLTM_DEVICE void advance() {
    two_before_ = before_;
    before_ = now_;
    now_ = now_ == (kGridSlots - 1) * slot_bytes_ ? 0 : now_ + slot_bytes_;
  }

 private:
  LLTM_DEVICE unsigned char* at(int slot, int group) const {
    return first_ + (slot + group * kBytes);
  }

  unsigned char* first_;
  int slot_bytes_, now_ = 0, before_, two_before_;
};

/// Where a thread writes words of V of an element that exists, and empties those of the slot of two
/// steps before. The address is ready before the words are.
struct PlaceOfWords {
  unsigned char* to = nullptr;
  int to_two_before = 0;
  bool exists = false;

  PlaceOfWords() = default;
  LLTM_DEVICE PlaceOfWords(unsigned char* now, unsigned char* two_before, bool element_exists)
      : to(now), to_two_before(static_cast<int>(two_before - now)), exists(element_exists) {
    asm volatile("" : "+l"(to));
  }
  LLTM_DEVICE void publish(uint32_t word, int at = 0, bool has_word = true) const {
    if (exists && has_word) {
      store_relaxed(to + at, word);
      store_relaxed(to + (to_two_before + at), kEmptyWord);
    }
  }
};

/// The pieces of V that a lane loads at each tick: kCount of 16 bytes.
template <int kCount>
struct Polls {
  uint4 of[kCount];

  static LLTM_DEVICE bool is_missing(const uint4& v) {
    return max(max(v.x, v.y), max(v.z, v.w)) == kEmptyWord;
  }

  /// Loads the pieces that are wanted, and zeros in the place of others. Piece i is at(i).
  template <typename Wants, typename At>
  LLTM_DEVICE void start(const Wants& wants, const At& at) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      of[i] = make_uint4(0, 0, 0, 0);
      if (wants(i)) {
        of[i] = load_relaxed(at(i));
      }
    }
  }
  /// Loads again what has not been there, until all is.
  template <typename At>
  LLTM_DEVICE void finish(const At& at) {
    bool again = true;
    while (again) {
      bool missing = false;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (is_missing(of[i])) {
          of[i] = load_relaxed(at(i));
          missing = true;
        }
      }
      again = __any_sync(~0u, missing);
    }
  }
};

}  // namespace lltm::cuda
