#include "gradient_plan.h"

#include "../scheduler/gradient_schedule.h"
#include "backward.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lltm::cuda {
namespace {

struct TileSizes {
  int state_columns, weight_columns;
  MemberOf<GradientCosts, GradientCosts::Tiles> costs;
};
constexpr TileSizes kTiles[] = {
    {64, 64, &GradientCosts::columns_64_64},
    {64, 256, &GradientCosts::columns_64_256},
    {128, 256, &GradientCosts::columns_128_256},
    {256, 256, &GradientCosts::columns_256_256},
};
constexpr int kTileRows = 128;

double pieces(int64_t of, int64_t size) {
  return static_cast<double>(ceil_div(of, size));
}

int chunk_columns(const BackwardShape& s) {
  return 128 / s.element_bytes();
}

// Tiles across the columns of d_weights. In TF32, old_h and input are transposed into one matrix.
double column_tiles(const BackwardShape& s, int columns) {
  return s.arithmetic == Arithmetic::kTf32
             ? pieces(s.width(), columns)
             : pieces(s.state_size, columns) + pieces(s.input_features, columns);
}

// Whether the rows of all results start at multiples of 16 bytes.
bool aligned(const BackwardShape& s) {
  return s.state_size * s.element_bytes() % 16 == 0 && s.width() * s.element_bytes() % 16 == 0;
}

double estimate(const BackwardShape& s,
                const GradientCosts::Tiles& of,
                const GradientPlan& plan,
                int cluster) {
  const bool small = plan.weight_columns == 64;
  const int chunk_k = chunk_columns(s);
  // A cluster computes tiles of 256 columns one below the other, and any consecutive small tiles.
  const double state_rows = std::ceil(pieces(s.width(), kTileRows) / (small ? 1 : cluster));
  const double weight_rows = std::ceil(pieces(s.gates(), kTileRows) / (small ? 1 : cluster));
  const auto units = [&](double tiles, bool shares_k) {
    return static_cast<int>(std::ceil(tiles / (small && !shares_k ? cluster : 1)));
  };
  const int state_units =
      units(state_rows * pieces(s.batch, plan.state_columns) * plan.state_parts, plan.shares_state);
  const int weight_units = units(
      weight_rows * column_tiles(s, plan.weight_columns) * plan.weight_parts, plan.shares_weights);
  const double state_shares = plan.shares_state ? cluster : plan.state_parts;
  const double weight_shares = plan.shares_weights ? cluster : plan.weight_parts;
  // Parts go to a workspace, whose rows are aligned.
  const double unaligned = aligned(s) ? 0 : of.unaligned_tile;
  const double state = std::ceil(pieces(s.gates(), chunk_k) / state_shares) * of.state_chunk +
                       of.state_tile +
                       (plan.state_parts == 1 ? unaligned * plan.state_columns / 512 : 0);
  const double weight = std::ceil(pieces(s.batch, chunk_k) / weight_shares) * of.weight_chunk +
                        of.weight_tile +
                        (plan.weight_parts == 1 ? unaligned * plan.weight_columns / 256 : 0);
  const int clusters = plan.blocks / cluster;
  // Tiles whose K is shared have a cluster each. Clusters that are not resident wait.
  const int sharing = cluster == 1 ? 0
                                   : (plan.shares_state ? state_units : 0) +
                                         (plan.shares_weights ? weight_units : 0);
  double us = sharing > clusters
                  ? pieces(state_units, clusters) * state + pieces(weight_units, clusters) * weight
                  : share_gradients(state_units, weight_units, clusters, state, weight)
                        .makespan(state, weight);
  const double tiles = cluster;  // of a unit; their columns may exceed 32 bits
  const double parts = (plan.state_parts > 1 ? state_units * tiles * plan.state_columns : 0) +
                       (plan.weight_parts > 1 ? weight_units * tiles * plan.weight_columns : 0);
  if (parts > 0) {
    us += of.sums + of.sums_megabyte * parts * kTileRows * 4e-6;
  }
  const double megabytes = 3e-6 * static_cast<double>(s.state_size * s.width()) * s.element_bytes();
  return of.launch + us + megabytes * (of.megabyte + (aligned(s) ? 0 : of.unaligned_megabyte));
}

}  // namespace

GradientChoice choose_gradient_plan(const BackwardShape& s, const DeviceFacts& device) {
  const auto& of_products = device.costs->backward.wgmma;
  const bool tf32 = s.arithmetic == Arithmetic::kTf32;
  const GradientCosts& costs = tf32 ? of_products.tf32 : of_products.half;
  const int64_t state_chunks = ceil_div(s.gates(), chunk_columns(s));
  const int64_t weight_chunks = ceil_div(s.batch, chunk_columns(s));
  // In TF32 only tiles of 256 columns read weights whose rows start anywhere.
  const double packing =
      tf32 && s.width() % 4 != 0
          ? device.costs->packing.time(12 * static_cast<double>(s.state_size * s.width()))
          : 0;
  GradientChoice best{};
  const auto consider =
      [&](const TileSizes& of, const GradientPlan& plan, int cluster, double more) {
        const double us = estimate(s, costs.*of.costs, plan, cluster) + more;
        if (best.plan.blocks == 0 || us < best.us) {
          best = {plan, us};
        }
      };
  for (const TileSizes& of : kTiles) {
    if (of.weight_columns == 64) {
      for (int log = 0; log < 4; ++log) {
        const int ranks = 1 << log;
        // Two blocks share a multiprocessor.
        const int blocks = 2 * device.resident_in_clusters_of(ranks) / ranks * ranks;
        if (blocks == 0) {
          continue;
        }
        for (const auto& [shares_state, shares_weights] :
             {std::pair{true, false}, {true, true}, {false, true}}) {
          // Each rank needs at least one chunk of a K that is shared.
          if ((shares_state && state_chunks < ranks) ||
              (shares_weights && (ranks == 1 || weight_chunks < ranks))) {
            continue;
          }
          consider(of,
                   {.state_columns = 64,
                    .weight_columns = 64,
                    .ranks = ranks,
                    .shares_state = shares_state,
                    .shares_weights = shares_weights,
                    .blocks = blocks},
                   ranks,
                   costs.exchange[log] + packing);
        }
      }
      continue;
    }
    if (of.state_columns == 64 && s.batch > 64) {
      continue;
    }
    for (const int state_parts : {1, 2, 3, 4, 5, 6, 8}) {
      for (const int weight_parts : {1, 2, 3, 4, 6, 8, 12, 16, 32}) {
        if (state_parts > std::max<int64_t>(state_chunks / 2, 1) ||
            weight_parts > std::max<int64_t>(weight_chunks / 2, 1)) {
          continue;
        }
        consider(of,
                 {.state_columns = of.state_columns,
                  .weight_columns = of.weight_columns,
                  .state_parts = state_parts,
                  .weight_parts = weight_parts,
                  .blocks = device.multiprocessors / 2 * 2},
                 2,
                 0);
      }
    }
  }
  return best;
}

}  // namespace lltm::cuda
