// How the products of the backward by wgmma are divided: the plan with the least estimate.
#include "../scheduler/schedule_gradients.h"
#include "backward.h"
#include "times.h"

#include <algorithm>
#include <utility>

namespace lltm::cuda {
namespace {

/// The schedule of all products; of d_old_h, only if the steps of a sequence have not computed it.
GradientSchedule schedule_of(const BackwardShape& s, const GradientPlan& plan, bool d_old_h) {
  return schedule_gradients(*s.arithmetic,
                            {.batch = s.batch,
                             .input_features = s.input_features,
                             .state_size = s.state_size,
                             .gates = s.gates(),
                             .d_old_h = d_old_h,
                             .d_input = true,
                             .d_weights = true},
                            plan,
                            /*one_segment=*/s.arithmetic == Arithmetic::kTf32);
}

struct TileSizes {
  int state_columns, weight_columns;
  const GradientCosts::Tiles GradientCosts::* costs;
};
constexpr TileSizes kTiles[] = {
    {64, 64, &GradientCosts::columns_64_64},
    {64, 256, &GradientCosts::columns_64_256},
    {128, 256, &GradientCosts::columns_128_256},
    {256, 256, &GradientCosts::columns_256_256},
};

/// In 16 bits and TF32.
double products_time(const BackwardShape& s,
                     const GradientCosts::Tiles& of,
                     const GradientPlan& plan,
                     const DeviceFacts& device) {
  const GradientSchedule schedule = schedule_of(s, plan, /*d_old_h=*/true);
  const int state_units = schedule.state.units, weight_units = schedule.weights.units;
  double state = tiled_time(device, 1, schedule.state.chunks.of(0), of.state_chunk, of.state_tile);
  double weight =
      tiled_time(device, 1, schedule.weights.chunks.of(0), of.weight_chunk, of.weight_tile);
  double a_megabyte = of.megabyte;
  if (s.state_size * s.element_bytes() % 16 != 0 || s.width() * s.element_bytes() % 16 != 0) {
    // Parts go to a workspace, whose rows are aligned.
    state += plan.state_parts == 1 ? of.unaligned_tile * plan.state_columns / 512 : 0;
    weight += plan.weight_parts == 1 ? of.unaligned_tile * plan.weight_columns / 256 : 0;
    a_megabyte += of.unaligned_megabyte;
  }
  // Tiles whose K is shared have a cluster each. Clusters that are not resident wait.
  const int clusters = plan.blocks / plan.ranks;
  const auto rounds = [&](int units) { return static_cast<double>(ceil_div(units, clusters)); };
  double us = schedule.shares.clusters > clusters
                  ? rounds(state_units) * state + rounds(weight_units) * weight
                  : share_gradients(state_units, weight_units, clusters, state, weight)
                        .makespan(state, weight);
  if (const int64_t floats = floats_of_parts(schedule, plan); floats > 0) {
    us += of.sums + of.sums_megabyte * static_cast<double>(floats) * 4e-6;
  }
  return of.launch + us + 1e-6 * s.weights_bytes() * a_megabyte;
}

/// In float32.
double products_time(const BackwardShape& s, const GradientPlan& plan, const DeviceFacts& device) {
  const auto& costs = device.costs->backward.wgmma_float32;
  const BackwardCosts::Float32Tile& of = plan.rows == 64 ? costs.tile_64x96 : costs.tile_128x96;
  const GradientSchedule schedule = schedule_of(s, plan, s.forms_d_old_h);
  const double exchange = plan.ranks > 1 ? of.exchange : 0;
  const double state =
      tiled_time(device, 1, schedule.state.chunks.of(0), of.chunk, of.state_tile + exchange);
  const double weight =
      tiled_time(device, 1, schedule.weights.chunks.of(0), of.chunk, of.weight_tile);
  return schedule.shares.makespan(state, weight) +
         (plan.weight_parts > 1
              ? costs.sum + (plan.weight_parts + 1) * s.weights_bytes() / costs.sum_rate
              : 0);
}

/// Keeps the plan with the least time.
void keep_best(Estimate& best, const GradientPlan& plan, double us) {
  if (best.plan.blocks == 0 || us < best.us) {
    best = {us, 1, plan};
  }
}

/// A plan without blocks.
GradientPlan plan_with(const TileSizes& of) {
  return {.rows = kGradientRows,
          .state_columns = of.state_columns,
          .weight_columns = of.weight_columns};
}

/// The best plan with small tiles, whose K the ranks of a cluster may share.
void consider_ranks(Estimate& best,
                    const TileSizes& of,
                    const BackwardShape& s,
                    const GradientCosts& costs,
                    const DeviceFacts& device) {
  for (int log = 0; log < 4; ++log) {
    const int ranks = 1 << log;
    GradientPlan plan = plan_with(of);
    plan.ranks = ranks;
    // Two blocks share a multiprocessor.
    plan.blocks = 2 * device.resident_in_clusters_of(ranks) / ranks * ranks;
    if (plan.blocks == 0) {
      continue;
    }
    for (const auto& [shares_state, shares_weights] :
         {std::pair{true, false}, {true, true}, {false, true}}) {
      // Each rank needs at least one chunk of a K that is shared.
      if ((!shares_state || s.chunks(s.gates()) >= ranks) &&
          (!shares_weights || (ranks > 1 && s.chunks(s.batch) >= ranks))) {
        plan.shares_state = shares_state;
        plan.shares_weights = shares_weights;
        keep_best(
            best, plan, products_time(s, costs.*of.costs, plan, device) + costs.exchange[log]);
      }
    }
  }
}

/// The best plan with large tiles, whose K may be divided into parts.
void consider_parts(Estimate& best,
                    const TileSizes& of,
                    const BackwardShape& s,
                    const GradientCosts& costs,
                    const DeviceFacts& device) {
  const auto has_chunks_for = [](int parts, int64_t chunks) {
    return parts <= std::max<int64_t>(chunks / 2, 1);
  };
  GradientPlan plan = plan_with(of);
  plan.ranks = 2;
  plan.blocks = device.multiprocessors / 2 * 2;
  for (const int state_parts : {1, 2, 3, 4, 5, 6, 8}) {
    for (const int weight_parts : {1, 2, 3, 4, 6, 8, 12, 16, 32}) {
      if (has_chunks_for(state_parts, s.chunks(s.gates())) &&
          has_chunks_for(weight_parts, s.chunks(s.batch))) {
        plan.state_parts = state_parts;
        plan.weight_parts = weight_parts;
        keep_best(best, plan, products_time(s, costs.*of.costs, plan, device));
      }
    }
  }
}

}  // namespace

Estimate choose_gradient_plan(const BackwardShape& s, const DeviceFacts& device) {
  const auto& of_products = device.costs->backward.wgmma;
  const bool tf32 = s.arithmetic == Arithmetic::kTf32;
  const GradientCosts& costs = tf32 ? of_products.tf32 : of_products.half;
  Estimate best{};
  for (const TileSizes& of : kTiles) {
    if (of.weight_columns == 64) {
      consider_ranks(best, of, s, costs, device);
    } else if (of.state_columns > 64 || s.batch <= 64) {
      consider_parts(best, of, s, costs, device);
    }
  }
  if (tf32) {
    // The kernel of d_gates transposes the inputs.
    const auto inputs_bytes = static_cast<double>(s.batch * s.width()) * s.element_bytes();
    best.us += 2 * inputs_bytes / device.costs->backward.gate_gradients_rate;
    best.us += s.width() % 4 != 0 ? device.costs->packing.time(s.weights_bytes()) : 0;
  } else {
    best.us += packing_time(s, /*by_wgmma=*/true, device);
  }
  return best;
}

Estimate choose_float32_gradient_plan(const BackwardShape& s, const DeviceFacts& device) {
  const int64_t state_chunks = s.chunks(s.gates()), weight_chunks = s.chunks(s.batch);
  Estimate best{};
  for (const int rows : {64, 128}) {
    const int64_t state_tiles = ceil_div(s.batch, rows) * s.state_column_tiles(kThreeTf32Columns);
    for (const int ranks : {1, 2, 4, 8}) {
      // A cluster has at most one tile whose K is shared.
      const int resident = device.resident_in_clusters_of(ranks);
      if (resident < ranks ||
          (ranks > 1 && (ranks > state_chunks || state_tiles > resident / ranks))) {
        continue;
      }
      for (const int parts : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32}) {
        // Splitting the batch of d_weights keeps all multiprocessors busy to the end.
        if (parts > 1 && 2 * parts > weight_chunks) {
          continue;
        }
        const GradientPlan plan{.rows = rows,
                                .state_columns = kThreeTf32Columns,
                                .weight_columns = kThreeTf32Columns,
                                .ranks = ranks,
                                .shares_state = ranks > 1,
                                .weight_parts = parts,
                                .blocks = resident};
        const double us = products_time(s, plan, device);
        // More parts have to pay off, since all of them are written, read and added.
        const double factor = parts > best.plan.weight_parts ? 1.05 : 1;
        if (best.plan.blocks == 0 || us * factor < best.us) {
          best = {us, 1, plan};
        }
      }
    }
  }
  best.us +=
      device.costs->backward.wgmma_float32.launch + packing_time(s, /*by_wgmma=*/true, device);
  return best;
}

}  // namespace lltm::cuda
