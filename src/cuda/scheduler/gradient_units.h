// The schedule of the backward's products. Both are matrices of M rows and N columns whose left
// operand is read by columns:
//
//   [d_old_h | d_input].T = weights.T @ d_gates.T    M = state_size + input_features, N = batch,
//                                                    K = 3*state_size: the "state" product
//   d_weights = d_gates.T @ [old_h | input]          M = 3*state_size, N = state_size +
//                                                    input_features, K = batch: the "weight"
//                                                    product
//
// A unit of work is a tile and a range of its K. The units of both products are distributed by cost
// to the clusters of the grid. Each cluster knows its own units from the start.
#pragma once

#include "../../cell.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <tuple>
#include <utility>

namespace lltm::cuda {

/// The rows of a tile, and the threads that multiply.
constexpr int kGradientRows = 128, kGradientThreads = 256;

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
  int ranks;          // of a cluster
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

  LLTM_HOST_DEVICE GradientUnit tile(int row, int column, int tile_rows, int tile_columns) const {
    GradientUnit unit{};
    unit.tile = row * columns + column;
    unit.second_segment = column >= columns_first;
    unit.row = first_row + row * tile_rows;
    unit.column = (unit.second_segment ? column - columns_first : column) * tile_columns;
    return unit;
  }

  /// What rank `rank` computes of unit `index`.
  LLTM_HOST_DEVICE GradientUnit unit(int index, int rank, int tile_rows, int tile_columns) const {
    const int place = share == RanksShare::kNothing ? index * ranks + rank : index;
    const int row = by_columns.quotient(place), column = place - row * columns;
    const int part = by_row_units.quotient(row);
    const int row_in_part = row - part * row_units;
    GradientUnit unit =
        tile(share == RanksShare::kColumns ? row_in_part * ranks + rank : row_in_part,
             column,
             tile_rows,
             tile_columns);
    unit.part = part;
    const int chunk_share = share == RanksShare::kK ? rank : part;
    unit.first_chunk = chunks.first(chunk_share);
    unit.chunks = chunks.first(chunk_share + 1) - unit.first_chunk;
    return unit;
  }
};

/// Divides `rows` x `columns` tiles, whose K has `chunks` chunks, into units for clusters of
/// `ranks`. `parts` is one if the ranks share K. Where they share nothing, the last unit may have
/// places past the last tile: outside of all matrices or, with parts, in a part that does not
/// exist.
inline GradientTiles gradient_tiles(
    RanksShare share, int ranks, int rows, int columns_first, int columns, int chunks, int parts) {
  const int rows_a_unit = share == RanksShare::kColumns ? ranks : 1;
  const int row_units = (rows + rows_a_unit - 1) / rows_a_unit;
  const int tiles_a_unit = share == RanksShare::kNothing ? ranks : 1;
  return {.share = share,
          .ranks = ranks,
          .first_row = 0,
          .rows = row_units * rows_a_unit,
          .columns_first = columns_first,
          .columns = columns,
          .parts = parts,
          .units = (row_units * columns * parts + tiles_a_unit - 1) / tiles_a_unit,
          .row_units = row_units,
          .by_columns = divisor(columns),
          // Without parts, places past the last tile are in part 0, too.
          .by_row_units = parts > 1 ? divisor(row_units) : kNeverDivides,
          .chunks = even_shares(chunks, share == RanksShare::kK ? ranks : parts)};
}

struct GradientSchedule {
  GradientTiles state, weights;
  int clusters;
  // Units whose K is shared come before others: the sums that ranks send could otherwise overwrite
  // a tile that is being written.
  bool weights_first;
  // The first `busy` clusters have one more unit of the state product than the others. Together
  // they have weights_of_busy units of the weight product; the others have the rest.
  int busy, weights_of_busy;
  EvenShares busy_weights, other_weights;

  template <int kTileRows, int kStateColumns, int kWeightColumns, typename Do>
  LLTM_HOST_DEVICE void for_each_unit(int cluster, int rank, const Do& work) const {
    const int first = first_weights(cluster);
    const int states = (state.units - cluster + clusters - 1) / clusters;
    const int count = states + first_weights(cluster + 1) - first;
    const int before = weights_first ? count - states : states;  // of the first product
#if defined(__CUDA_ARCH__)  // the host's compiler does not know this pragma
#pragma unroll 1
#endif
    for (int i = 0; i < count; ++i) {
      const bool of_weights = (i >= before) != weights_first;
      const int number = i < before ? i : i - before;
      GradientUnit unit = (of_weights ? weights : state)
                              .unit(of_weights ? first + number : cluster + number * clusters,
                                    rank,
                                    kTileRows,
                                    of_weights ? kWeightColumns : kStateColumns);
      unit.of_weights = of_weights;
      work(unit);
    }
  }

 private:
  LLTM_HOST_DEVICE int first_weights(int cluster) const {
    return cluster < busy ? busy_weights.first(cluster)
                          : weights_of_busy + other_weights.first(cluster - busy);
  }
};

/// For clusters that all have units of the state product: how many have one more than the others,
/// and how many units of the weight product those share, so that all clusters finish at about the
/// same time. The costs are per unit.
inline std::pair<int, int> share_of_busy(
    int state_units, int weight_units, int clusters, double state_cost, double weight_cost) {
  const int busy = clusters > 0 ? state_units % clusters : 0;
  if (busy == 0) {
    return {0, 0};
  }
  const int others = clusters - busy;
  const auto done = [&](int a_busy_cluster) {
    const int rest = std::max(weight_units - busy * a_busy_cluster, 0);
    return std::max(state_cost + a_busy_cluster * weight_cost,
                    (rest + others - 1) / others * weight_cost);
  };
  int a_busy_cluster =
      std::max(static_cast<int>((weight_units - others * state_cost / weight_cost) / clusters), 0);
  if (done(a_busy_cluster + 1) < done(a_busy_cluster)) {
    ++a_busy_cluster;
  }
  return {busy, std::min(busy * a_busy_cluster, weight_units)};
}

/// Distributes the units to at most `clusters` clusters.
inline GradientSchedule deal_out(const GradientTiles& state,
                                 const GradientTiles& weights,
                                 int clusters,
                                 double state_cost,
                                 double weight_cost) {
  GradientSchedule s{};
  s.state = state;
  s.weights = weights;
  s.weights_first = weights.share == RanksShare::kK;
  s.clusters = std::min(state.units + weights.units, clusters);
  std::tie(s.busy, s.weights_of_busy) =
      share_of_busy(state.units, weights.units, s.clusters, state_cost, weight_cost);
  s.busy_weights = even_shares(s.weights_of_busy, s.busy);
  s.other_weights = even_shares(weights.units - s.weights_of_busy, s.clusters - s.busy);
  return s;
}

}  // namespace lltm::cuda
