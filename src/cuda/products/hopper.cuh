// The product of a tile on Hopper in any arithmetic (sm_90a). K is contiguous in both operands.
#pragma once

#include "../tile/shapes.h"
#include "wgmma.cuh"
#include "wgmma_three_tf32.cuh"

#include <type_traits>

namespace lltm::cuda {

/// A tile that a product is compiled for.
struct WgmmaTile {
  TileShape shape;
  int stages;
  int helpers = 0;  // more threads, which only finish sums

  constexpr bool operator==(const TileShape& other) const { return shape == other; }
};

/// kSumsAColumn: the columns of B for each of the tile. kOverlaps: as WgmmaProduct has it.
template <Arithmetic kArithmetic, WgmmaTile kTile, int kSumsAColumn, bool kOverlaps>
struct HopperProduct {
  static constexpr int kGroups = kTile.shape.rows / 64, kStages = kTile.stages;
  static constexpr int kColumns = kSumsAColumn * kTile.shape.columns;
  static constexpr int kRowTiles = kTile.shape.row_tiles, kHelpers = kTile.helpers;

  using Type = std::conditional_t<
      kArithmetic == Arithmetic::kFloat32,
      ThreeTf32Product<Major::kK, kGroups, kGroups, kStages, kColumns>,
      WgmmaProduct<kArithmetic, kGroups, kColumns, kStages, kRowTiles, kHelpers, kOverlaps>>;
};

}  // namespace lltm::cuda
