// The schedule of a backward's products, from its problem and plan.
#pragma once

#include "../plan/gradient_plan.h"
#include "../problem.h"
#include "../tile/shapes.h"
#include "gradient_units.h"

#include <algorithm>

namespace lltm::cuda {

/// K is counted in chunks of chunk_k. one_segment says whether [old_h | input] is one matrix as the
/// weight product reads it.
inline GradientSchedule schedule_gradients(const BackwardProblem& p,
                                           const GradientPlan& plan,
                                           int chunk_k,
                                           bool one_segment) {
  const bool small = plan.weight_columns == 64;
  const int ranks = small ? plan.ranks : 2;
  const auto share = [&](bool shares_k) {
    return !small                  ? RanksShare::kColumns
           : shares_k && ranks > 1 ? RanksShare::kK
                                   : RanksShare::kNothing;
  };
  const int64_t gates = 3 * p.state_size, width = p.state_size + p.input_features;
  // Starts at a whole tile, so that d_input has the same bits with and without d_old_h.
  const int64_t first_row = p.d_old_h != nullptr ? 0 : p.state_size / kGradientRows * kGradientRows;
  const int64_t end_row = p.d_input != nullptr   ? width
                          : p.d_old_h != nullptr ? p.state_size
                                                 : first_row;
  const int batch_tiles = tiles_of(p.batch, plan.state_columns);
  const int state_chunks = tiles_of(gates, chunk_k), weight_chunks = tiles_of(p.batch, chunk_k);
  GradientTiles state = gradient_tiles(share(plan.shares_state),
                                       ranks,
                                       tiles_of(end_row - first_row, kGradientRows),
                                       batch_tiles,
                                       batch_tiles,
                                       state_chunks,
                                       plan.state_parts);
  state.first_row = static_cast<int>(first_row);
  const int first_columns = tiles_of(one_segment ? width : p.state_size, plan.weight_columns);
  const GradientTiles weights = gradient_tiles(
      share(plan.shares_weights),
      ranks,
      p.d_weights != nullptr ? tiles_of(gates, kGradientRows) : 0,
      first_columns,
      first_columns + (one_segment ? 0 : tiles_of(p.input_features, plan.weight_columns)),
      weight_chunks,
      plan.weight_parts);
  const bool state_shares = state.share == RanksShare::kK;
  const bool weights_share = weights.share == RanksShare::kK;
  // A cluster has at most one tile whose K is shared.
  const int clusters = std::max(
      plan.blocks / ranks, (state_shares ? state.units : 0) + (weights_share ? weights.units : 0));
  // The cost of a unit in chunks, epilogue included. Tiles whose K is shared are not distributed by
  // cost.
  const double state_cost = double(state_chunks) / (state_shares ? ranks : state.parts) *
                                (plan.state_columns == plan.weight_columns ? 1 : 0.75) +
                            2;
  const double weight_cost =
      weights_share ? 1e6
                    : double(weight_chunks) / weights.parts + (plan.state_columns == 256 ? 3 : 1.5);
  return deal_out(state, weights, clusters, state_cost, weight_cost);
}

/// Whether the weight product reads [old_h | input] as one matrix: in TF32 it is their transposed
/// copy.
inline bool has_one_segment(Arithmetic arithmetic, const BackwardProblem& p) {
  return arithmetic == Arithmetic::kTf32 || p.input_features == 0 ||
         (p.input.stride == p.old_h.stride && p.old_h.stride >= p.state_size + p.input_features &&
          p.input.data == p.old_h.from(p.state_size, element_size(arithmetic)).data);
}

inline GradientSchedule schedule_gradients(Arithmetic arithmetic,
                                           const BackwardProblem& p,
                                           const GradientPlan& plan) {
  return schedule_gradients(
      p, plan, 128 / element_size(arithmetic), has_one_segment(arithmetic, p));
}

/// The floats of the workspace for the parts of tiles that another kernel adds.
inline int64_t floats_of_parts(Arithmetic arithmetic,
                               const BackwardProblem& p,
                               const GradientPlan& plan) {
  const GradientSchedule s = schedule_gradients(arithmetic, p, plan);
  const auto floats = [](const GradientTiles& tiles, int columns) {
    return int64_t(tiles.tiles_in_parts()) * tiles.parts * columns * kGradientRows;
  };
  return floats(s.state, plan.state_columns) + floats(s.weights, plan.weight_columns);
}

}  // namespace lltm::cuda
