// Copying chunks of K from rows that start at any multiple of 4 bytes, which TMA cannot read, to
// where TMA would write them: by several warps, which read a row at a time. (cp.async takes 25
// cycles for 32 words of 4 bytes.)
#pragma once

#include "../problem.h"
#include "../ptx/barrier.cuh"
#include "../ptx/global.cuh"
#include "../ptx/mma.cuh"
#include "../ptx/shared.cuh"

#include <algorithm>
#include <cstdint>

namespace lltm::cuda {

/// kRows rows of the batch and kHidden rows of weights for each gate. Each warp takes every
/// kWarps-th row of each, and a lane one word of a chunk. The words pass through registers, where
/// floats are rounded to TF32 as TMA does it, kAhead chunks before they are stored.
template <Arithmetic kArithmetic, int kRows, int kHidden, int kWarps>
class WordCopier {
 public:
  /// Copies for the tile that starts at first_row and first_hidden. Called by all lanes of warp
  /// `warp` of those that copy.
  __device__ __forceinline__
  WordCopier(const ForwardProblem& problem, int64_t first_row, int first_hidden, int warp)
      : p_(problem), first_row_(first_row), warp_(warp) {
    rows_ = static_cast<int>(min(p_.batch - first_row, int64_t(kRows)));
    const auto last_hidden = static_cast<int>(p_.state_size) - 1;
#pragma unroll
    for (int i = 0; i < kRowsOfWeights; ++i) {
      const int row = min(warp + i * kWarps, 3 * kHidden - 1);
      const uint32_t gate = row / kHidden;
      const int hidden = min(first_hidden + row % kHidden, last_hidden);
      of_weights_[i] = (gate * static_cast<uint32_t>(p_.state_size) + hidden) *
                           static_cast<uint32_t>(p_.weights.stride * kSize) +
                       lane() * 4;
    }
  }

  /// Copies `chunks` chunks, of which the first is piece_of(0) of [h | x], to the slots of a ring,
  /// A's rows before B's, at bytes_a. A slot is full when each warp has arrived once.
  template <typename Slots, typename PieceOf>
  __device__ __forceinline__ void copy(Slots slots,
                                       int chunks,
                                       int bytes_a,
                                       const PieceOf& piece_of) {
    if (chunks == 0) {
      return;
    }
    Chunk ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (i < chunks) {
        load(ahead[i], piece_of(i));
      }
    }
#pragma unroll 1
    for (int chunk = 0;;) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        slots.wait_empty();
        store(ahead[i], slots.data(), slots.data() + bytes_a);
        __syncwarp();
        if (lane() == 0) {
          arrive(slots.full());
        }
        if (++chunk == chunks) {
          return;
        }
        slots.advance();
        // Not in a branch: the compiler would merge what is loaded with what was there before, and
        // wait for it. So the last chunk is read again instead of those beyond it.
        load(ahead[i], piece_of(min(chunk + kAhead, chunks) - 1));
      }
    }
  }

 private:
  static constexpr int kSize = element_size(kArithmetic);
  // Rows of a warp, the last of which it may not have.
  static constexpr int kRowsOfStates = kRows / kWarps + (kRows % kWarps > 0);
  static constexpr int kRowsOfWeights = 3 * kHidden / kWarps + (3 * kHidden % kWarps > 0);
  static constexpr int kAhead = std::clamp(54 / (kRowsOfStates + kRowsOfWeights), 2, 4);

  /// What a lane has of a chunk.
  struct Chunk {
    uint32_t states[kRowsOfStates], weights[kRowsOfWeights];
    bool has_half;  // of its words: one element, behind which h or x ends
  };

  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

  // What lies beyond h or x becomes zero.
  __device__ __forceinline__ void load(Chunk& to, const Segments::Piece& piece) const {
    const Matrix& matrix = piece.of(p_.old_h, p_.input);
    const int64_t columns = piece.of(p_.state_size, p_.input_features);
    const auto bytes = static_cast<int>(min((columns - piece.first) * kSize, int64_t{128}));
    const char* const states =
        static_cast<const char*>(matrix.data) + (first_row_ * matrix.stride + piece.first) * kSize;
    const char* const weights = static_cast<const char*>(p_.weights.data) +
                                (piece.of(int64_t{0}, p_.input_column()) + piece.first) * kSize;
    const auto row_bytes = static_cast<uint32_t>(matrix.stride * kSize);
    const int word = lane() * 4;
    const bool exists = word < bytes;
#pragma unroll
    for (int i = 0; i < kRowsOfStates; ++i) {
      const int row = min(warp_ + i * kWarps, rows_ - 1);
      load_again(to.states[i], states + (row * row_bytes + word), exists);
    }
#pragma unroll
    for (int i = 0; i < kRowsOfWeights; ++i) {
      load_again(to.weights[i], weights + of_weights_[i], exists);
    }
    to.has_half = kSize == 2 && bytes - word == 2;
  }

  static __device__ __forceinline__ uint32_t stored(uint32_t word, bool is_half) {
    if constexpr (kSize == 2) {
      return is_half ? word & 0xffff : word;
    } else {
      return kArithmetic == Arithmetic::kTf32 ? round_to_tf32(__uint_as_float(word)) : word;
    }
  }

  // Rows have 128 bytes, and their vectors are permuted by the row's number in a group of eight.
  __device__ __forceinline__ void store(const Chunk& from,
                                        uint32_t states,
                                        uint32_t weights) const {
    static_assert(kWarps % 8 == 0 || kWarps % 8 == 4);
#pragma unroll
    for (int i = 0; i < kRowsOfStates; ++i) {
      if (const int row = warp_ + i * kWarps; row < rows_) {
        store_shared(states + place(i), stored(from.states[i], from.has_half));
      }
    }
#pragma unroll
    for (int i = 0; i < kRowsOfWeights; ++i) {
      if (warp_ + i * kWarps < 3 * kHidden) {
        store_shared(weights + place(i), stored(from.weights[i], from.has_half));
      }
    }
  }
  // Where this lane's word of this warp's row i is. With an odd multiple of four warps, odd rows
  // are permuted in the other half.
  __device__ __forceinline__ uint32_t place(int i) const {
    const uint32_t at = warp_ * 128 + (lane() / 4 ^ warp_ % 8) * 16 + lane() % 4 * 4;
    return (kWarps % 8 == 0 ? at : at ^ i % 2 * 64) + i * kWarps * 128;
  }

  const ForwardProblem& p_;
  const int64_t first_row_;
  const int warp_;
  int rows_;                             // of the tile that exist
  uint32_t of_weights_[kRowsOfWeights];  // the offsets of this lane's words
};

}  // namespace lltm::cuda
