// The tiles that the kernels are compiled for.
#pragma once

#include <cstdint>

namespace lltm::cuda {

/// How many tiles it takes, of which the last may be cut off.
inline int tiles_of(int64_t size, int64_t tile) {
  return static_cast<int>((size + tile - 1) / tile);
}

/// A block's share of the forward: rows of the batch x columns of the hidden state, whose three
/// gates it computes all.
enum class ForwardTile { k16x8, k64x8, k64x32, k128x32, kCount };

/// A block's share of the forward by Hopper's own instructions. Pairs of tiles, of the same hidden
/// columns, are in one cluster and read the weights once; `Twice` has two blocks a multiprocessor.
/// kFloat32 has k64x8, k64x32 and k128x32, the others all but k64x32.
enum class WgmmaTile {
  k64x8,
  k64x24,
  k64x32,
  k64x40,
  k64x40InPairs,
  k128x32,
  k128x32InPairs,
  k128x32Twice,
  k128x64InPairs,
  kCount
};

/// A block's share of a gradient's product by mma.sync: rows x columns of the result.
enum class ProductTile { k64x64, k128x128, kCount };

/// A block's share of a step of the sequence's backward, by mma.sync, too.
enum class SequenceGradientTile { k32x32, k64x64 };

/// A gradient's product in float32 by wgmma.
enum class Float32GradientTile { k64x96, k128x96, kCount };

/// How many rows of the batch a block has at a time of d_old_h and d_input in TF32 by wgmma.
enum class Tf32BatchTile { k64, k128, k256, kCount };

/// How many rows of the batch the kernels for few of them take at most, and the warps of a block of
/// the forward.
constexpr int kFewRows = 8, kFewRowsWarps = 16;

}  // namespace lltm::cuda
