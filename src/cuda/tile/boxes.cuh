// Copying boxes of matrices to shared memory with all threads of a block (cp.async).
#pragma once

#include "../ptx/cp_async.cuh"
#include "../ptx/shared.cuh"

#include <cstdint>

namespace lltm::cuda {

/// A box of a matrix: `rows` rows from `data` on, `stride` elements apart.
template <typename Element_>
struct Box {
  using Element = Element_;
  const Element* data;
  int64_t stride;
  int rows;

  LLTM_DEVICE bool has(int r) const { return r < rows; }
  LLTM_DEVICE int64_t offset(int r) const { return r * stride; }
};

/// The rows of `weights` that a block needs: kHidden of each gate.
template <typename Element_, int kHidden>
struct GateRows {
  using Element = Element_;
  const Element* data;  // the input gate's row of the first hidden column
  int64_t stride;
  int64_t state_size;
  int hidden;  // the number of hidden columns inside the matrix

  LLTM_DEVICE bool has(int r) const { return r % kHidden < hidden; }
  LLTM_DEVICE int64_t offset(int r) const {
    return (r / kHidden * state_size + r % kHidden) * stride;
  }
};

/// Copies one kRows x kColumns box after another to shared memory, with zeros for whatever lies
/// outside the source. A source says whether it `has` a row, and the `offset` of a row from its
/// `data`. All rows start at multiples of 16 bytes.
///
/// A thread's addresses are computed once and advanced from box to box: a block has few warps, so
/// nothing hides the latency between a box's first and last copy.
template <int kRows, int kColumns, int kPitch, int kThreads, typename Source>
class BoxCopier {
 public:
  using Element = typename Source::Element;

  /// Called before the first copy, and whenever the next box does not continue the previous one.
  LLTM_DEVICE void start(const Source& source) {
    source_ = source;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      pointers_[i] = source.data + source.offset(first_row() + i * kRowsPerPass) + column();
    }
  }

  /// Starts copying a box of which `columns` columns are inside the source. The next box is
  /// `advance` elements further on.
  LLTM_DEVICE void copy(Element* shared, int columns, int64_t advance) {
    const int valid = min(max(columns - column(), 0), kPieceElements) * kSize;
    const uint32_t to = shared_address(shared + first_row() * kPitch + column());
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int r = first_row() + i * kRowsPerPass;
      if (kRows % kRowsPerPass == 0 || r < kRows) {
        copy_async<16>(
            to + i * kRowsPerPass * kPitch * kSize, pointers_[i], source_.has(r) ? valid : 0);
      }
      pointers_[i] += advance;
    }
  }

  Source source_;

 private:
  static constexpr int kSize = sizeof(Element);
  static constexpr int kPieceElements = 16 / kSize;
  static constexpr int kPiecesPerRow = kColumns / kPieceElements;
  static constexpr int kRowsPerPass = kThreads / kPiecesPerRow;
  static constexpr int kPasses = (kRows + kRowsPerPass - 1) / kRowsPerPass;
  static_assert(kColumns % kPieceElements == 0 && kThreads % kPiecesPerRow == 0);

  static LLTM_DEVICE int column() {
    return static_cast<int>(threadIdx.x) % kPiecesPerRow * kPieceElements;
  }
  static LLTM_DEVICE int first_row() { return static_cast<int>(threadIdx.x) / kPiecesPerRow; }

  const Element* pointers_[kPasses];
};

}  // namespace lltm::cuda
