// The tiles that kernels are compiled for.
#pragma once

#include <cstdint>

namespace lltm::cuda {

/// The number of tiles that cover `size`. The last one may be partial.
inline int tiles_of(int64_t size, int64_t tile) {
  return static_cast<int>((size + tile - 1) / tile);
}

/// The largest cluster that every GPU with clusters supports.
constexpr int kLargestCluster = 8;

/// A block's tile in the forward: rows of the batch x columns of the hidden state, each with all
/// three gates.
enum class ForwardTile { k16x8, k64x8, k64x32, k128x32 };

/// A block's tile in the forward by wgmma. InPairs: two tiles of the same hidden columns are in one
/// cluster and read the weights once. ByWords: rows may start at any multiple of 4 bytes; only the
/// cell has it. kFloat32 has k64x8, k64x32, k128x32, k64x8ByWords and k64x32ByWords, the others all
/// but those of 64x32.
enum class WgmmaTile {
  k64x8,
  k64x24,
  k64x32,
  k64x40,
  k64x40InPairs,
  k128x32,
  k128x32InPairs,
  k128x64InPairs,
  k192x32,
  k64x8ByWords,
  k64x32ByWords,
  k64x40ByWords,
  k64x48ByWords
};

/// A block's tile in a product of the backward by mma.sync: rows x columns of the result.
enum class ProductTile { k64x64, k128x128 };

/// A block's tile in a step of the sequence's backward, also by mma.sync.
enum class SequenceGradientTile { k32x32, k64x64 };

/// The rows of a block's tile in the backward's products by wgmma in 16 bits and TF32, and the
/// threads that multiply.
constexpr int kGradientRows = 128, kGradientThreads = 256;

/// A block's tile in a product of the backward in float32 by wgmma, whose K has chunks of
/// kFloat32GradientChunk.
enum class Float32GradientTile { k64x96, k128x96 };

constexpr int kFloat32GradientColumns = 96, kFloat32GradientChunk = 32;
constexpr int rows_of(Float32GradientTile tile) {
  return tile == Float32GradientTile::k64x96 ? 64 : 128;
}

/// The most rows that a block of the few_rows kernels multiplies, and the warps per block of the
/// forward's.
constexpr int kFewRows = 8, kFewRowsWarps = 16;

/// The largest batch that the few_rows kernel of a cell's forward supports, in groups of rows that
/// each read the weights. Other kernels of few_rows support kFewRows.
constexpr int kFewRowsGroups = 2, kMostFewRows = kFewRowsGroups * kFewRows;

}  // namespace lltm::cuda
