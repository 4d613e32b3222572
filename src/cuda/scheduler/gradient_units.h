// How the backward's two products are divided into units of work:
//
//   [d_old_h | d_input] = d_gates @ weights    the "state" product, K = 3*state_size
//   d_weights = d_gates.T @ [old_h | input]    the "weight" product, K = batch
//
// A unit is a tile and a range of its K.
#pragma once

#include "../../cell/math.h"
#include "../tile/shapes.h"

#include <bit>
#include <cstdint>

namespace lltm::cuda {

/// What a block computes at a time: a tile and a range of the chunks of its K.
struct GradientUnit {
  bool of_weights;
  bool second_segment;  // of the weight product: its columns are those of the second right operand
  int row, column;      // the first of the tile, counted within its segment
  int first_chunk, chunks;
  int tile, part;
};

/// Division of numbers below 2^31 by a divisor that is known on the host.
struct Divisor {
  uint32_t multiplier, shift;

  LLTM_HOST_DEVICE int quotient(int number) const {
    return multiplier == 0
               ? number
               : static_cast<int>((uint64_t{static_cast<uint32_t>(number)} * multiplier >> 32) >>
                                  shift);
  }
};

inline Divisor divisor(int by) {
  if (by <= 1) {
    return {0, 0};
  }
  const auto bits = static_cast<uint32_t>(std::bit_width(static_cast<uint32_t>(by - 1)));
  const uint64_t power = uint64_t{1} << (31 + bits);
  return {
      static_cast<uint32_t>((power + static_cast<uint64_t>(by) - 1) / static_cast<uint64_t>(by)),
      bits - 1};
}

/// A divisor that makes every quotient zero.
constexpr Divisor kNeverDivides{1, 0};

/// An even division of consecutive items: the first few shares have one more than the others.
struct EvenShares {
  int each, with_one_more;

  LLTM_HOST_DEVICE int of(int share) const { return each + (share < with_one_more ? 1 : 0); }
  LLTM_HOST_DEVICE int first(int share) const {
    return share * each + (share < with_one_more ? share : with_one_more);
  }
};

inline EvenShares even_shares(int count, int shares) {
  return shares > 0 ? EvenShares{count / shares, count % shares} : EvenShares{0, 0};
}

/// What the ranks of a cluster share: the K of a tile, so that they exchange their sums; the
/// columns of tiles of their own, one below the other; or nothing, so that their tiles follow each
/// other.
enum class RanksShare { kK, kColumns, kNothing };

/// The tiles of a product and the units that they are divided into.
struct GradientTiles {
  RanksShare share;
  int ranks;  // of a cluster
  int tile_rows, tile_columns;
  int first_row;      // of the product
  int rows;           // of tiles, rounded up to whole units
  int columns_first;  // columns of tiles, in the first segment of columns and in all
  int columns;
  int parts;  // of K; another kernel adds them
  int units;
  int row_units;  // rows of units in a part
  Divisor by_columns, by_row_units;
  EvenShares chunks;  // chunks of K, per part or per rank

  LLTM_HOST_DEVICE int tiles() const { return rows * columns; }
  LLTM_HOST_DEVICE int tiles_in_parts() const { return parts > 1 ? tiles() : 0; }
  /// The sums of all parts of all tiles.
  LLTM_HOST_DEVICE int64_t floats_of_parts() const {
    return int64_t(tiles_in_parts()) * parts * tile_rows * tile_columns;
  }

  LLTM_HOST_DEVICE GradientUnit tile(int row, int column) const {
    GradientUnit unit{};
    unit.tile = row * columns + column;
    unit.second_segment = column >= columns_first;
    unit.row = first_row + row * tile_rows;
    unit.column = (unit.second_segment ? column - columns_first : column) * tile_columns;
    return unit;
  }

  /// What rank `rank` computes of unit `index`.
  LLTM_HOST_DEVICE GradientUnit unit(int index, int rank) const {
    const int place = share == RanksShare::kNothing ? index * ranks + rank : index;
    const int row = by_columns.quotient(place), column = place - row * columns;
    const int part = by_row_units.quotient(row);
    const int row_in_part = row - part * row_units;
    GradientUnit unit =
        tile(share == RanksShare::kColumns ? row_in_part * ranks + rank : row_in_part, column);
    unit.part = part;
    const int chunk_share = share == RanksShare::kK ? rank : part;
    unit.first_chunk = chunks.first(chunk_share);
    unit.chunks = chunks.of(chunk_share);
    return unit;
  }
};

/// Divides the tiles of `tile_rows` x `tile_columns` that cover so many rows and columns in two
/// segments, whose K has `chunks` chunks, into units for clusters of `ranks`. `parts` is one if the
/// ranks share K. Where they share nothing, the last unit may have places past the last tile:
/// outside of all matrices or, with parts, in a part that does not exist.
inline GradientTiles gradient_tiles(RanksShare share,
                                    int ranks,
                                    int tile_rows,
                                    int tile_columns,
                                    int64_t rows,
                                    int64_t first_columns,
                                    int64_t second_columns,
                                    int chunks,
                                    int parts) {
  const int rows_a_unit = share == RanksShare::kColumns ? ranks : 1;
  const int row_units = tiles_of(rows, int64_t{tile_rows} * rows_a_unit);
  const int tiles_a_unit = share == RanksShare::kNothing ? ranks : 1;
  const int columns_first = tiles_of(first_columns, tile_columns);
  const int columns = columns_first + tiles_of(second_columns, tile_columns);
  return {.share = share,
          .ranks = ranks,
          .tile_rows = tile_rows,
          .tile_columns = tile_columns,
          .first_row = 0,
          .rows = row_units * rows_a_unit,
          .columns_first = columns_first,
          .columns = columns,
          .parts = parts,
          .units = tiles_of(int64_t{row_units} * columns * parts, tiles_a_unit),
          .row_units = row_units,
          .by_columns = divisor(columns),
          // Without parts, places past the last tile are in part 0, too.
          .by_row_units = parts > 1 ? divisor(row_units) : kNeverDivides,
          .chunks = even_shares(chunks, share == RanksShare::kK ? ranks : parts)};
}

}  // namespace lltm::cuda
