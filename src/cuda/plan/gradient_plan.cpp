// How the products of the backward by wgmma are divided: the plan with the least estimate.
#include "../scheduler/schedule_gradients.h"
#include "backward.h"
#include "times.h"

#include <algorithm>
#include <utility>

namespace lltm::cuda {
namespace {

/// A plan's schedule, and what a unit of each product takes.
struct Products {
  GradientSchedule schedule;  // of d_old_h only if the steps of a sequence have not computed it
  double state_us, weight_us;
};

Products products_of(const GradientPlan& plan,
                     const Shape& s,
                     const TiledTime& state,
                     const TiledTime& weight,
                     const DeviceFacts& device) {
  const auto unit = [&](int64_t k, int shares, TiledTime of) {
    of.chunks = rounds(s.chunks(k), shares);
    return of.time(device);
  };
  return {schedule_gradients(*s.arithmetic,
                             {.batch = s.batch,
                              .input_features = s.input_features,
                              .state_size = s.state_size,
                              .gates = s.gates(),
                              .d_old_h = s.forms_d_old_h,
                              .d_input = true,
                              .d_weights = true},
                             plan,
                             /*one_segment=*/s.arithmetic == Arithmetic::kTf32),
          unit(s.gates(), plan.shares_state ? plan.ranks : plan.state_parts, state),
          unit(s.batch, plan.shares_weights ? plan.ranks : plan.weight_parts, weight)};
}

/// In 16 bits and TF32.
double products_time(const GradientPlan& plan,
                     const Shape& s,
                     const GradientCosts::Tiles& of,
                     const DeviceFacts& device) {
  TiledTime state{.chunk = of.state_chunk, .rest = of.state_tile};
  TiledTime weight{.chunk = of.weight_chunk, .rest = of.weight_tile};
  double a_megabyte = of.megabyte;
  if (s.state_size * s.element_bytes() % 16 != 0 || s.width() * s.element_bytes() % 16 != 0) {
    // Parts go to a workspace, whose rows are aligned.
    state.rest += plan.state_parts == 1 ? of.unaligned_tile * plan.state_columns / 512 : 0;
    weight.rest += plan.weight_parts == 1 ? of.unaligned_tile * plan.weight_columns / 256 : 0;
    a_megabyte += of.unaligned_megabyte;
  }
  const auto [schedule, state_us, weight_us] = products_of(plan, s, state, weight, device);
  const int state_units = schedule.state.units, weight_units = schedule.weights.units;
  // Tiles whose K is shared have a cluster each. Clusters that are not resident wait.
  const int clusters = plan.blocks / plan.ranks;
  double us =
      schedule.shares.clusters > clusters
          ? rounds(state_units, clusters) * state_us + rounds(weight_units, clusters) * weight_us
          : share_gradients(state_units, weight_units, clusters, state_us, weight_us)
                .makespan(state_us, weight_us);
  if (const int64_t floats = schedule.floats_of_parts(); floats > 0) {
    us += of.sums + of.sums_megabyte * static_cast<double>(floats) * 4e-6;
  }
  return of.launch + us + 1e-6 * s.weights_bytes() * a_megabyte;
}

/// In float32.
double products_time(const GradientPlan& plan, const Shape& s, const DeviceFacts& device) {
  const auto& costs = device.costs->backward.wgmma_float32;
  const BackwardCosts::Float32Tile& of = plan.rows == 64 ? costs.tile_64x96 : costs.tile_128x96;
  const double exchange = plan.ranks > 1 ? of.exchange : 0;
  const auto [schedule, state_us, weight_us] =
      products_of(plan,
                  s,
                  {.chunk = of.chunk, .rest = of.state_tile + exchange},
                  {.chunk = of.chunk, .rest = of.weight_tile},
                  device);
  return schedule.shares.makespan(state_us, weight_us) +
         (plan.weight_parts > 1
              ? costs.sum + (plan.weight_parts + 1) * s.weights_bytes() / costs.sum_rate
              : 0);
}

}  // namespace

Estimate choose_gradient_plan(const Shape& s, const DeviceFacts& device) {
  const auto& of_products = device.costs->backward.wgmma;
  const bool tf32 = s.arithmetic == Arithmetic::kTf32;
  const GradientCosts& costs = tf32 ? of_products.tf32 : of_products.half;
  const int64_t state_chunks = s.chunks(s.gates()), weight_chunks = s.chunks(s.batch);
  Estimate best{};
  const auto consider = [&](GradientPlan plan, const GradientCosts::Tiles& of, double exchange) {
    plan.rows = kGradientRows;
    const double us = products_time(plan, s, of, device) + exchange;
    if (best.plan.blocks == 0 || us < best.us) {
      best = {us, 1, plan};
    }
  };
  // Small tiles, whose K the ranks of a cluster may share. Two blocks share a multiprocessor.
  for (int log = 0; log < 4; ++log) {
    const int ranks = 1 << log, blocks = 2 * device.resident_in_clusters_of(ranks) / ranks * ranks;
    for (const auto& [shares_state, shares_weights] :
         {std::pair{true, false}, {true, true}, {false, true}}) {
      // Each rank needs at least one chunk of a K that is shared.
      if (blocks > 0 && (!shares_state || state_chunks >= ranks) &&
          (!shares_weights || (ranks > 1 && weight_chunks >= ranks))) {
        consider({.state_columns = 64,
                  .weight_columns = 64,
                  .ranks = ranks,
                  .shares_state = shares_state,
                  .shares_weights = shares_weights,
                  .blocks = blocks},
                 costs.columns_64_64,
                 costs.exchange[log]);
      }
    }
  }
  // Large tiles, whose K may be divided into parts of at least two chunks.
  const auto has_chunks_for = [](int parts, int64_t chunks) {
    return parts <= std::max<int64_t>(chunks / 2, 1);
  };
  for (const auto& [columns, of] : {std::pair{64, &costs.columns_64_256},
                                    {128, &costs.columns_128_256},
                                    {256, &costs.columns_256_256}}) {
    for (const int state_parts : {1, 2, 3, 4, 5, 6, 8}) {
      for (const int weight_parts : {1, 2, 3, 4, 6, 8, 12, 16, 32}) {
        if ((columns > 64 || s.batch <= 64) && has_chunks_for(state_parts, state_chunks) &&
            has_chunks_for(weight_parts, weight_chunks)) {
          consider({.state_columns = columns,
                    .weight_columns = 256,
                    .ranks = 2,
                    .state_parts = state_parts,
                    .weight_parts = weight_parts,
                    .blocks = device.multiprocessors / 2 * 2},
                   *of,
                   0);
        }
      }
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

Estimate choose_float32_gradient_plan(const Shape& s, const DeviceFacts& device) {
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
        const double us = products_time(plan, s, device);
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
