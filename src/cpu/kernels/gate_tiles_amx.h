// gate_tiles.h for the tile registers of AMX: columns of d_gates, packed as operands of tiles of
// rows of d_weights.
#pragma once

#include "packing.h"
#include "tile_registers.h"

namespace lltm::cpu {
namespace {

template <typename scalar_t>
class GateTiles {
  static_assert(std::is_same_v<scalar_t, c10::BFloat16>);
  using O = Operand<scalar_t>;
  using V = Simd<float>;

 public:
  static constexpr int64_t kHeight = 2 * kTileRows;
  // A task should read whole cache lines of each row of d_gates.
  static constexpr int64_t kGatesPerTask = 2 * kHeight;
  // A panel's depth is a multiple of this.
  static constexpr int64_t kOperandsAtOnce = kTileOperands;

  LLTM_INLINE void pack(const WeightGradientParams<scalar_t>& params,
                        int64_t first_gate,
                        int64_t gate_count) {
    const int64_t depth = depth_of<scalar_t>(params.row_count);
    tiles_deep_ = ceil_div(depth, kTileOperands);
    for (int64_t k = 0; k < tiles_deep_ * kTileOperands; k += kTileOperands) {
      for (int64_t gate = 0; gate < kGatesPerTask; gate += kTileRows) {
        const int64_t gates = clamp(gate_count - gate, 0, kTileRows);
        V::Vector square[kTileOperands];
        for (int64_t i = 0; i < kTileOperands; ++i) {
          const scalar_t* rows[O::kTerms];
          next_rows([&](int64_t r) { return params.rows[r].d_gates + first_gate; },
                    (k + i) * O::kTerms,
                    params.row_count,
                    rows);
          square[i] = k + i < depth ? O::across(rows, gate, gates).value : V::Vector{};
        }
        transpose<float>(square);
        for (int64_t i = 0; i < kTileRows; ++i) {
          V(square[i]).store(tiles_[gate / kTileRows][k / kTileOperands][i]);
        }
      }
    }
  }

  /// Multiplies a tile by a panel, and sums over all rows.
  LLTM_INLINE void multiply(int64_t tile,
                            const float* panel,
                            VectorOf<scalar_t> (&sums)[kHeight][kMaxVectors]) const {
    constexpr int vectors = kMaxVectors / 2;
    constexpr int64_t width = kPanelWidth<scalar_t>;
    const auto source = [&](int64_t t) __attribute__((always_inline)) {
      return TileSource{tiles_[t], kTileOperands * sizeof(float), sizeof(tiles_[0][0])};
    };
    const TileSource rows[2] = {source(2 * tile), source(2 * tile + 1)};
    for (int v = 0; v < kMaxVectors; v += vectors) {
      clear_tiles<2 * vectors>();
      multiply_add_tiles<2, vectors>(tiles_deep_, rows, panel + v * V::kLanes, width);
      float* const to[2] = {reinterpret_cast<float*>(&sums[0][v]),
                            reinterpret_cast<float*>(&sums[kTileRows][v])};
      store_tiles<2, vectors>(to, width);
    }
  }

 private:
  const TileRegisters registers_{kTileRows};
  int64_t tiles_deep_;
  alignas(64) float tiles_[kGatesPerTask / kTileRows][kWeightDepth / kTileOperands][kTileRows]
                          [kTileOperands];
};

}  // namespace
}  // namespace lltm::cpu
