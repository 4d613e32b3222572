// The tile registers of AMX, each of up to 16 rows of 64 bytes. A register holds sums, 16 floats
// per row; or rows of up to 32 terms; or the pairs of factors, one pair for each of 16 sums per
// row, in the layout of the panels.
//
// Inline assembly, because GCC's intrinsics require the register number as a literal, and do not
// tell the compiler that a load reads what was stored before.
#pragma once

#include "simd.h"

#include <utility>

namespace lltm::cpu {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileTerms = 32;
constexpr int64_t kTileOperands = kTileTerms / 2;

/// Registers 0 to 5 hold sums, 6 holds rows, 7 holds factors.
constexpr int kTileSums = 6;
constexpr int kRowsTile = kTileSums;
constexpr int kFactorsTile = kTileSums + 1;

/// The height of the tiles of this many rows: about equal, because a tile's time is that of its
/// rows.
LLTM_INLINE int64_t tile_height(int64_t rows) {
  return ceil_div(rows, ceil_div(rows, kTileRows));
}

/// Configures the thread's tile registers for tiles of this many rows, for its own lifetime. A
/// previous configuration is lost; every user of the registers configures them first.
class TileRegisters {
 public:
  explicit TileRegisters(int64_t height) {
    struct {
      uint8_t palette = 1;
      uint8_t start_row = 0;
      uint8_t reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } configuration;
    for (int tile = 0; tile <= kFactorsTile; ++tile) {
      configuration.row_bytes[tile] = 64;
      configuration.rows[tile] = static_cast<uint8_t>(tile == kFactorsTile ? kTileRows : height);
    }
    asm volatile("ldtilecfg %0" ::"m"(configuration));
  }
  ~TileRegisters() { asm volatile("tilerelease" ::); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

template <int tile>
LLTM_INLINE void load_tile(const void* from, int64_t stride_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride_bytes), "i"(tile)
               : "memory");
}
template <int tile>
LLTM_INLINE void store_tile(void* to, int64_t stride_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride_bytes), "i"(tile) : "memory");
}
template <int tile>
LLTM_INLINE void clear_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(tile));
}
/// Adds the products of the loaded rows and factors to a tile of sums.
template <int tile>
LLTM_INLINE void multiply_add_tile() {
  asm volatile(
      "tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(tile), "i"(kRowsTile), "i"(kFactorsTile));
}

/// Calls function.operator()<i>() for i from 0 to count - 1.
template <int count, typename Function>
LLTM_INLINE void for_each_index(const Function& function) {
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    (function.template operator()<i>(), ...);
  }(std::make_integer_sequence<int, count>());
}

/// Successive tiles of rows.
struct TileSource {
  const void* data;
  int64_t row_bytes;        // from one row to the next
  int64_t tile_bytes = 64;  // from one tile to the next

  LLTM_INLINE const char* tile(int64_t k) const {
    return static_cast<const char*>(data) + k * tile_bytes;
  }
};

/// Adds the products of `depth` successive tiles of each row tile and of `vectors` vectors of
/// factors to the sums.
template <int row_tiles, int vectors>
LLTM_INLINE void multiply_add_tiles(int64_t depth,
                                    const TileSource (&rows)[row_tiles],
                                    const float* factors,
                                    int64_t factors_stride) {
  static_assert(row_tiles * vectors <= kTileSums);
  const int64_t stride_bytes = factors_stride * sizeof(float);
  for (int64_t k = 0; k < depth; ++k) {
    const float* const factors_here = factors + k * kTileOperands * factors_stride;
    for_each_index<row_tiles>([&]<int r>() __attribute__((always_inline)) {
      load_tile<kRowsTile>(rows[r].tile(k), rows[r].row_bytes);
      for_each_index<vectors>([&]<int i>() __attribute__((always_inline)) {
        // Back and forth, so that the tile that was loaded last is used twice.
        constexpr int v = r % 2 == 0 ? i : vectors - 1 - i;
        if constexpr (r == 0 || i > 0) {
          load_tile<kFactorsTile>(factors_here + v * 16, stride_bytes);
        }
        multiply_add_tile<r * vectors + v>();
      });
    });
  }
}

template <int sums>
LLTM_INLINE void clear_tiles() {
  for_each_index<sums>([&]<int i>() __attribute__((always_inline)) { clear_tile<i>(); });
}

/// Stores the sums of row tile r to to[r], vector by vector, with rows `stride` floats apart.
template <int row_tiles, int vectors>
LLTM_INLINE void store_tiles(float* const (&to)[row_tiles], int64_t stride) {
  for_each_index<row_tiles>([&]<int r>() __attribute__((always_inline)) {
    for_each_index<vectors>([&]<int v>() __attribute__((always_inline)) {
      store_tile<r * vectors + v>(to[r] + v * 16, stride * sizeof(float));
    });
  });
}

}  // namespace
}  // namespace lltm::cpu
