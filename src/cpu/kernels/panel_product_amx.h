// panel_product.h for bfloat16 with the tile registers of AMX. The panels are the same.
#pragma once

#include "packing.h"
#include "panel_sums.h"
#include "tile_registers.h"

namespace lltm::cpu {
namespace {

/// Holds the tile registers that the products of a kernel's rows need while the kernel runs.
template <typename scalar_t>
class ProductRegisters {
 public:
  explicit ProductRegisters(int64_t rows) : registers_(tile_height(rows > 0 ? rows : 1)) {}

 private:
  TileRegisters registers_;
};

// The number of terms of a partial sum: see kDepth.
constexpr int64_t kTermsPerTileBlock = 512;

/// A row tile's terms of a block, in place. Copied are the last terms if they do not fill a tile,
/// and all terms if the rows have no common stride.
class RowTile {
 public:
  template <typename RowOf>
  LLTM_INLINE void point_at(const RowOf& row_of, int64_t height, int64_t terms) {
    const c10::BFloat16* const first = row_of(0);
    const int64_t stride = height > 1 ? distance(first, row_of(1)) : 0;
    bool is_uniform = true;
    for (int64_t r = 2; r < height; ++r) {
      is_uniform &= distance(first, row_of(r)) == r * stride;
    }
    const int64_t whole = is_uniform ? terms / kTileTerms * kTileTerms : 0;
    if (whole < terms) {
      const int64_t padded = ceil_div(terms, kTileTerms) * kTileTerms;
      for (int64_t r = 0; r < height; ++r) {
        std::memcpy(copy_[r] + whole, row_of(r) + whole, (terms - whole) * sizeof(c10::BFloat16));
        std::memset(copy_[r] + terms, 0, (padded - terms) * sizeof(c10::BFloat16));
      }
    }
    body = is_uniform ? TileSource{first, stride} : TileSource{copy_, sizeof(copy_[0])};
    tail = {copy_[0] + terms / kTileTerms * kTileTerms, sizeof(copy_[0])};
  }

  TileSource body;
  TileSource tail;

 private:
  static LLTM_INLINE int64_t distance(const c10::BFloat16* from, const c10::BFloat16* to) {
    return reinterpret_cast<const char*>(to) - reinterpret_cast<const char*>(from);
  }

  alignas(64) c10::BFloat16 copy_[kTileRows][kTermsPerTileBlock];
};

/// See multiply_by_panel() in panel_product.h.
template <typename scalar_t, int vectors, typename RowOf, typename Sums>
LLTM_INLINE void multiply_by_panel(int64_t rows,
                                   int64_t terms,
                                   const float* panel,
                                   const RowOf& row_of,
                                   const Sums& sums_of_rows) {
  static_assert(std::is_same_v<scalar_t, c10::BFloat16>);
  constexpr int64_t width = vectors * 16;
  const int64_t tiles = ceil_div(rows, kTileRows);
  const int64_t height = tiles > 0 ? tile_height(rows) : 0;
  RowTile row_tiles[2];
  alignas(64) float factors_tail[kTileOperands][width];
  alignas(64) float sums[2][kTileRows][width];
  int64_t term = 0;
  do {
    const int64_t terms_here = smaller(kTermsPerTileBlock, terms - term);
    const bool is_last = term + terms_here == terms;
    const float* const factors = panel + term / 2 * width;
    const int64_t depth = terms_here / kTileTerms;
    const bool has_tail = terms_here % kTileTerms > 0;
    if (has_tail) {
      const int64_t operands = ceil_div(terms_here % kTileTerms, 2);
      std::memcpy(factors_tail,
                  factors + depth * kTileOperands * width,
                  operands * sizeof(factors_tail[0]));
      std::memset(factors_tail[operands], 0, (kTileOperands - operands) * sizeof(factors_tail[0]));
    }
    const auto multiply_tiles = [&]<int count>(int64_t first_tile) __attribute__((always_inline)) {
      // The last tile may overlap the one before it.
      int64_t first[count];
      TileSource body[count];
      TileSource tail[count];
      for (int r = 0; r < count; ++r) {
        first[r] = smaller((first_tile + r) * height, rows - height);
        row_tiles[r].point_at(
            [&](int64_t row) { return row_of(first[r] + row) + term; }, height, terms_here);
        body[r] = row_tiles[r].body;
        tail[r] = row_tiles[r].tail;
      }
      constexpr int vectors_at_once = count * vectors <= kTileSums ? vectors : vectors / 2;
      for (int v = 0; v < vectors; v += vectors_at_once) {
        clear_tiles<count * vectors_at_once>();
        multiply_add_tiles<count, vectors_at_once>(depth, body, factors + v * 16, width);
        if (has_tail) {
          multiply_add_tiles<count, vectors_at_once>(1, tail, &factors_tail[0][v * 16], width);
        }
        float* to[count];
        for (int r = 0; r < count; ++r) {
          to[r] = &sums[r][0][v * 16];
        }
        store_tiles<count, vectors_at_once>(to, width);
      }
      for (int r = 0; r < count; ++r) {
        const int64_t done = (first_tile + r) * height - first[r];
        sums_of_rows.template add<vectors>(
            first[r] + done,
            height - done,
            reinterpret_cast<const VectorOf<scalar_t>*>(sums[r][done]),
            term == 0,
            is_last);
      }
    };
    for (int64_t tile = 0; tile < tiles; tile += 2) {
      if (tile + 1 < tiles) {
        multiply_tiles.template operator()<2>(tile);
      } else {
        multiply_tiles.template operator()<1>(tile);
      }
    }
    term += kTermsPerTileBlock;
  } while (term < terms);
}

}  // namespace
}  // namespace lltm::cpu
