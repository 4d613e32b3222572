#pragma once

#include "../../problem.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace lltm::cuda {

/// What a kernel of the recurrence is compiled for: the largest state_size that it takes, and the
/// rows of a block, or the most rows of a cluster.
struct RecurrenceTile {
  int state_size, rows;
  // Whether the forward multiplies the input itself.
  bool x_inside = false;
  // The blocks that share the state.
  int cluster = 1;

  bool operator==(const RecurrenceTile&) const = default;
};

/// The largest input_features of a kernel of 16 bits that multiplies the input itself. One of
/// float32 takes as many as its largest state_size.
constexpr int kLargestRecurrentInput = 128;
/// The shared memory that its blocks need at most, for a cell of 3 or 4 gates.
constexpr int bytes_to_multiply_input(int gates) {
  return (gates == 3 ? 160 : 192) * 1024;
}

/// The tiles of gradient_products.cu, and how many of the products' summands a block takes at once.
constexpr int kGradientTile = 32, kGradientChunk = 128;

/// How the sums of d_weights over the rows of all steps are divided.
struct GradientParts {
  int64_t rows;  // of a part, a multiple of kGradientChunk; the last one may have fewer
  int64_t count;

  bool operator==(const GradientParts&) const = default;
};

/// Tiles by multiply-adds of one state: one for each number of rows.
struct FmaTiles {
  int state_size;
  std::initializer_list<int> rows;
  int cluster = 1;
  bool x_inside = false;
};
template <size_t kCount>
consteval std::array<RecurrenceTile, kCount> fma_tiles(std::initializer_list<FmaTiles> of_states) {
  std::array<RecurrenceTile, kCount> all{};
  size_t count = 0;
  for (const FmaTiles& of : of_states) {
    for (const int rows : of.rows) {
      all.at(count++) = {of.state_size, rows, of.x_inside, of.cluster};
    }
  }
  return count == kCount ? all : throw count;
}

/// Those for a cell of 3 or 4 gates. Weights take three quarters of the registers of a block at
/// most, which says how many blocks share a larger state, and whether those of x have room. A
/// cluster takes any number of rows, since a multiprocessor computes one after the other. The
/// kernels are compiled in this order, on which the machine code of some depends.
template <int kGates>
inline constexpr std::array<RecurrenceTile, 0> kFmaTiles{};
template <>
inline constexpr auto kFmaTiles<3> = fma_tiles<20>({
    {.state_size = 32, .rows = {1, 2, 4}},
    {.state_size = 32, .rows = {1}, .x_inside = true},
    {.state_size = 64, .rows = {1, 2, 4}},
    {.state_size = 96, .rows = {1, 2, 4}},
    {.state_size = 128, .rows = {1, 2, 4}},
    {.state_size = 256, .rows = {1, 2, 4, 3}, .cluster = 4},
    {.state_size = 512, .rows = {1, 2, 3}, .cluster = 16},
});
template <>
inline constexpr auto kFmaTiles<4> = fma_tiles<17>({
    {.state_size = 32, .rows = {1, 4}},
    {.state_size = 64, .rows = {1, 2, 4}},
    {.state_size = 96, .rows = {1, 2}},
    {.state_size = 128, .rows = {1, 2, 4, 3, 5}, .cluster = 2},
    {.state_size = 256, .rows = {1, 2, 4, 3, 5}, .cluster = 8},
});

/// The tiles by mma.sync: those of blocks by themselves with up to 8 rows, then the `others`.
template <size_t kOthers>
constexpr auto mma_tiles(const RecurrenceTile (&others)[kOthers]) {
  constexpr int kStates[] = {32, 64, 96, 128}, kRows[] = {1, 8};
  std::array<RecurrenceTile, 8 + kOthers> all{};
  auto* tile = all.data();
  for (const int state_size : kStates) {
    for (const int rows : kRows) {
      *tile++ = {.state_size = state_size, .rows = rows};
    }
  }
  std::copy_n(others, kOthers, tile);
  return all;
}
/// Those for a cell of 3 or 4 gates: what registers have room for.
template <int kGates>
inline constexpr std::array<RecurrenceTile, 0> kMmaTiles{};
template <>
inline constexpr auto kMmaTiles<3> = mma_tiles({
    {.state_size = 128, .rows = 32},
    {.state_size = 128, .rows = 32, .x_inside = true},
    {.state_size = 256, .rows = 32, .cluster = 4},
    {.state_size = 384, .rows = 32, .cluster = 6},
    {.state_size = 512, .rows = 16, .cluster = 8},
});
template <>
inline constexpr auto kMmaTiles<4> = mma_tiles({
    {.state_size = 128, .rows = 32, .x_inside = true},
    {.state_size = 256, .rows = 32, .cluster = 4},
});

/// The warps by mma.sync that have the same columns of the state, each a share of K: in a cluster,
/// whose blocks have 64 columns, as many as make a block of 8 warps.
constexpr int mma_shares(const RecurrenceTile& tile) {
  return tile.cluster == 1 ? 1 : 2;
}
/// The threads of a block by mma.sync, of which a warp has 16 columns of the state.
constexpr int mma_threads(const RecurrenceTile& tile) {
  return 2 * tile.state_size / tile.cluster * mma_shares(tile);
}

/// The blocks by mma.sync that a multiprocessor has registers for: as many as a thread can use.
/// Without a number, the assembler aims for more blocks, and a step takes up to 1.2 times as long.
constexpr int resident_mma_blocks(const RecurrenceTile& tile) {
  const int registers = tile.rows == 1 ? 168 : 240;
  return std::max(65536 / (registers * mma_threads(tile)), 1);
}

/// The blocks of multiply-adds that a multiprocessor has registers for.
constexpr int resident_fma_blocks(int gates, const RecurrenceTile& tile) {
  switch (tile.state_size) {
    case 32:
      return gates > 3 ? (tile.rows == 1 ? 8 : 4) : tile.rows == 1 && !tile.x_inside ? 12 : 8;
    case 64:
      return gates > 3 || tile.rows > 2 ? 2 : 3;
    default:
      return 1;
  }
}

}  // namespace lltm::cuda
