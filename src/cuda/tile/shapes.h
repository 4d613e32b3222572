// The tiles that the kernels of the forward are compiled for.
#pragma once

namespace lltm::cuda {

/// A block's share of the forward: rows of the batch x columns of the hidden state, whose three
/// gates it computes all.
enum class ForwardTile { k16x8, k64x8, k64x32, k128x32, kCount };

/// A block's share of the forward by Hopper's own instructions. Pairs of tiles, of the same hidden
/// columns, are in one cluster and read the weights once; `Twice` has two blocks a multiprocessor.
/// kFloat32 has k64x8, k64x32 and k128x32, the others all but k64x32 and k128x32.
enum class WgmmaTile {
  k64x8,
  k64x24,
  k64x32,
  k64x40,
  k64x40InPairs,
  k128x32,
  k128x32InPairs,
  k128x32InPairsTwice,
  kCount
};

/// How many rows of the batch the kernels for few of them take at most, and the warps of a block of
/// the forward.
constexpr int kFewRows = 8, kFewRowsWarps = 16;

}  // namespace lltm::cuda
