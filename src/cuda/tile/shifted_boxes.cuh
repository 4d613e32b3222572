// Copying boxes of matrices whose rows start anywhere to shared memory with all threads of a block.
// cp.async copies 16 bytes from multiples of 16 bytes alone, so a row is copied from the last such
// place before it, and shifted in shared memory once it has arrived.
#pragma once

#include "../ptx/cp_async.cuh"
#include "../ptx/shared.cuh"
#include "boxes.cuh"
#include "vectors.cuh"

#include <type_traits>

namespace lltm::cuda {

/// As BoxCopier, which it replaces where rows start anywhere: a copied box has to be realigned
/// before it is read. A row in shared memory takes one vector more than its columns.
template <int kRows, int kColumns, int kPitch, int kThreads, typename Source>
class ShiftedBoxCopier {
  using Element = typename Source::Element;
  static constexpr int kSize = sizeof(Element);
  static constexpr int kVectors = kColumns * kSize / 16;
  static constexpr int kRowsPerPass = kThreads / kVectors;
  static constexpr int kPasses = (kRows + kRowsPerPass - 1) / kRowsPerPass;
  static constexpr int kLastPasses = (kRows + kThreads - 1) / kThreads;
  static_assert(kThreads % kVectors == 0 && kPitch * kSize == (kVectors + 1) * 16);

 public:
  /// A box's vectors that this thread has shifted, and not yet written.
  struct Shifted {
    uint4 vectors[kPasses];
  };

  /// Called before the first copy, and whenever the next box does not continue the previous one.
  __device__ __forceinline__ void start(const Source& source) {
    source_ = source;
    column_ = 0;
  }

  /// Starts copying a box of which `columns` columns, at least one, are inside the source. The next
  /// box is `advance` elements further on, a multiple of 16 bytes.
  __device__ __forceinline__ void copy(Element* shared, int columns, int64_t advance) {
    const uint32_t to = shared_address(shared);
    const int bytes = min(columns, kColumns + 16 / kSize) * kSize;
    const auto copy_vector = [&](int r, int vector) {
      const Element* const row = source_.data + source_.offset(r) + column_;
      const int shift = shift_of(source_, r);
      const int valid = min(max(shift + bytes - vector * 16, 0), 16);
      copy_async<16>(to + r * kPitch * kSize + vector * 16,
                     reinterpret_cast<const char*>(row) - shift + vector * 16,
                     source_.has(r) ? valid : 0);
    };
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      if (const int r = first_row() + i * kRowsPerPass; r < kRows) {
        copy_vector(r, vector());
      }
    }
#pragma unroll
    for (int i = 0; i < kLastPasses; ++i) {
      if (const int r = static_cast<int>(threadIdx.x) + i * kThreads; r < kRows) {
        copy_vector(r, kVectors);
      }
    }
    column_ += advance;
  }

  /// Reads a copied box of `source`, whose rows start at those of this box or a multiple of 16
  /// bytes before, and shifts it. All threads do so before any calls write().
  static __device__ __forceinline__ Shifted read(const Element* shared, const Source& source) {
    Shifted shifted;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      if (const int r = first_row() + i * kRowsPerPass; r < kRows) {
        const auto* const from = reinterpret_cast<const uint4*>(shared + r * kPitch) + vector();
        shifted.vectors[i] = shift(from[0], from[1], shift_of(source, r));
      }
    }
    return shifted;
  }
  static __device__ __forceinline__ void write(Element* shared, const Shifted& shifted) {
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      if (const int r = first_row() + i * kRowsPerPass; r < kRows) {
        reinterpret_cast<uint4*>(shared + r * kPitch)[vector()] = shifted.vectors[i];
      }
    }
  }

  Source source_;

 private:
  static __device__ __forceinline__ int vector() {
    return static_cast<int>(threadIdx.x) % kVectors;
  }
  static __device__ __forceinline__ int first_row() {
    return static_cast<int>(threadIdx.x) / kVectors;
  }

  // The bytes between a row's start and the last multiple of 16 bytes before it.
  static __device__ __forceinline__ int shift_of(const Source& source, int r) {
    return static_cast<int>((reinterpret_cast<uintptr_t>(source.data) +
                             static_cast<uintptr_t>(source.offset(r)) * kSize) %
                            16);
  }

  // The 16 bytes from byte `first` on of two vectors.
  static __device__ __forceinline__ uint4 shift(const uint4& a, const uint4& b, int first) {
    uint32_t words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    move_to_front(words, first / 4);
    const int bits = kSize == 2 ? first % 4 * 8 : 0;
    return make_uint4(__funnelshift_r(words[0], words[1], bits),
                      __funnelshift_r(words[1], words[2], bits),
                      __funnelshift_r(words[2], words[3], bits),
                      __funnelshift_r(words[3], words[4], bits));
  }

  int64_t column_ = 0;
};

/// ShiftedBoxCopier or BoxCopier.
template <bool kShifts, int kRows, int kColumns, int kPitch, int kThreads, typename Source>
using BoxCopierFor = std::conditional_t<kShifts,
                                        ShiftedBoxCopier<kRows, kColumns, kPitch, kThreads, Source>,
                                        BoxCopier<kRows, kColumns, kPitch, kThreads, Source>>;

/// All threads of a block shift a copied box of each of two sources, as read() describes these.
template <typename CopierA, typename CopierB, typename Element, typename SourceA, typename SourceB>
__device__ __forceinline__ void shift_boxes(Element* a,
                                            const SourceA& source_a,
                                            Element* b,
                                            const SourceB& source_b) {
  const auto shifted_a = CopierA::read(a, source_a);
  const auto shifted_b = CopierB::read(b, source_b);
  __syncthreads();
  CopierA::write(a, shifted_a);
  CopierB::write(b, shifted_b);
  __syncthreads();
}

}  // namespace lltm::cuda
