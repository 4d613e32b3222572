// The schedules of a backward's products, from the sizes and the plan.
#pragma once

#include "../plan/gradient_plan.h"
#include "../problem.h"
#include "../tile/shapes.h"
#include "gradient_schedule.h"

#include <algorithm>

namespace lltm::cuda {

/// The sizes of a backward, and which of its products are wanted.
struct WantedGradients {
  int64_t batch, input_features, state_size;
  bool d_old_h, d_input, d_weights;
};

inline WantedGradients wanted_gradients(const BackwardProblem& p) {
  return {.batch = p.batch,
          .input_features = p.input_features,
          .state_size = p.state_size,
          .d_old_h = p.d_old_h != nullptr,
          .d_input = p.d_input != nullptr,
          .d_weights = p.d_weights != nullptr};
}

/// For 16 bits and TF32. The state product is computed transposed, [d_old_h | d_input].T =
/// weights.T @ d_gates.T, so that its left operand is read by columns, too. K is counted in chunks
/// of chunk_k. one_segment says whether [old_h | input] is one matrix as the weight product reads
/// it.
inline GradientSchedule schedule_gradients(const WantedGradients& of,
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
  const int64_t gates = 3 * of.state_size, width = of.state_size + of.input_features;
  // Starts at a whole tile, so that d_input has the same bits with and without d_old_h.
  const int64_t first_row = of.d_old_h ? 0 : of.state_size / kGradientRows * kGradientRows;
  const int64_t end_row = of.d_input ? width : of.d_old_h ? of.state_size : first_row;
  const int batch_tiles = tiles_of(of.batch, plan.state_columns);
  const int state_chunks = tiles_of(gates, chunk_k), weight_chunks = tiles_of(of.batch, chunk_k);
  const int first_columns = tiles_of(one_segment ? width : of.state_size, plan.weight_columns);
  GradientSchedule s{};
  s.state = gradient_tiles(share(plan.shares_state),
                           ranks,
                           tiles_of(end_row - first_row, kGradientRows),
                           batch_tiles,
                           batch_tiles,
                           state_chunks,
                           plan.state_parts);
  s.state.first_row = static_cast<int>(first_row);
  s.weights = gradient_tiles(
      share(plan.shares_weights),
      ranks,
      of.d_weights ? tiles_of(gates, kGradientRows) : 0,
      first_columns,
      first_columns + (one_segment ? 0 : tiles_of(of.input_features, plan.weight_columns)),
      weight_chunks,
      plan.weight_parts);
  s.order = WeightOrder::kByCluster;
  // The sums that ranks send could otherwise overwrite a tile that is being written.
  s.weights_first = s.weights.share == RanksShare::kK;
  const bool state_shares = s.state.share == RanksShare::kK;
  // A cluster has at most one tile whose K is shared.
  const int sharing = (state_shares ? s.state.units : 0) + (s.weights_first ? s.weights.units : 0);
  // The cost of a unit in chunks, epilogue included. Tiles whose K is shared are not distributed by
  // cost.
  const double state_cost = double(state_chunks) / (state_shares ? ranks : s.state.parts) *
                                (plan.state_columns == plan.weight_columns ? 1 : 0.75) +
                            2;
  const double weight_cost = s.weights_first ? 1e6
                                             : double(weight_chunks) / s.weights.parts +
                                                   (plan.state_columns == 256 ? 3 : 1.5);
  s.shares = share_gradients(s.state.units,
                             s.weights.units,
                             std::max(plan.blocks / ranks, sharing),
                             state_cost,
                             weight_cost);
  return s;
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
      wanted_gradients(p), plan, 128 / element_size(arithmetic), has_one_segment(arithmetic, p));
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

/// The cost of a float32 tile besides its chunks, in chunks: one that the ranks of a cluster share,
/// and others.
constexpr double kSharedTileCost = 5, kTileCost = 2;

/// For float32 without TF32. Both products have segments for the columns of h and those of x.
inline GradientSchedule schedule_gradients(const WantedGradients& of,
                                           const Float32GradientPlan& plan) {
  const int rows = rows_of(plan.tile), ranks = plan.ranks;
  const auto columns = [](bool wanted, int64_t size) {
    return wanted ? tiles_of(size, kFloat32GradientColumns) : 0;
  };
  const int64_t gates = 3 * of.state_size;
  const int state_h = columns(of.d_old_h, of.state_size);
  const int weights_h = columns(of.d_weights, of.state_size);
  const int state_chunks = tiles_of(gates, kFloat32GradientChunk);
  const int batch_chunks = tiles_of(of.batch, kFloat32GradientChunk);
  const bool shares_k = ranks > 1;
  GradientSchedule s{};
  s.state = gradient_tiles(shares_k ? RanksShare::kK : RanksShare::kNothing,
                           ranks,
                           tiles_of(of.batch, rows),
                           state_h,
                           state_h + columns(of.d_input, of.input_features),
                           state_chunks,
                           1);
  s.weights = gradient_tiles(RanksShare::kNothing,
                             ranks,
                             tiles_of(gates, rows),
                             weights_h,
                             weights_h + columns(of.d_weights, of.input_features),
                             batch_chunks,
                             plan.weight_parts);
  // The rows of a sequence's gradient do not fit L2.
  s.order = WeightOrder::kByTurn;
  // Sums that ranks exchange take the place of the operands, so that nothing may follow them.
  s.weights_first = shares_k;
  // A cluster has at most one tile whose K is shared.
  s.shares =
      share_gradients(s.state.units,
                      s.weights.units,
                      std::max(plan.blocks / ranks, shares_k ? s.state.units : 1),
                      double(state_chunks) / ranks + (shares_k ? kSharedTileCost : kTileCost),
                      double(batch_chunks) / plan.weight_parts + kTileCost);
  return s;
}

}  // namespace lltm::cuda
