// The schedules of a backward's products, from the sizes and the plan.
#pragma once

#include "../problem.h"
#include "gradient_plan.h"
#include "gradient_schedule.h"

#include <algorithm>

namespace lltm::cuda {

/// The sizes of a backward, and which of its products are wanted.
struct WantedGradients {
  int64_t batch, input_features, state_size, gates;
  bool d_old_h, d_input, d_weights;
};

/// Whether the weight product reads [old_h | input] as one matrix: in TF32 it is their transposed
/// copy.
inline bool has_one_segment(Arithmetic arithmetic, const BackwardProblem& p) {
  if (arithmetic == Arithmetic::kFloat32) {
    return false;
  }
  return arithmetic == Arithmetic::kTf32 || p.input_features == 0 ||
         (p.input.stride == p.old_h.stride && p.old_h.stride >= p.state_size + p.input_features &&
          p.input.data == p.old_h.from(p.state_size, element_size(arithmetic)).data);
}

/// The cost of a float32 tile besides its chunks, in chunks: one that the ranks of a cluster share,
/// and others.
constexpr double kSharedTileCost = 5, kTileCost = 2;

/// The schedule of the products by wgmma. In 16 bits and TF32 the state product is computed
/// transposed, [d_old_h | d_input].T = weights.T @ d_gates.T, so that its left operand is read by
/// columns, too. In float32 both products have segments for the columns of h and those of x.
inline GradientSchedule schedule_gradients(Arithmetic arithmetic,
                                           const WantedGradients& of,
                                           const GradientPlan& plan,
                                           bool one_segment) {
  const bool float32 = arithmetic == Arithmetic::kFloat32;
  const auto share = [&](bool shares_k) {
    return plan.has_large_tiles()       ? RanksShare::kColumns
           : shares_k && plan.ranks > 1 ? RanksShare::kK
                                        : RanksShare::kNothing;
  };
  const int64_t width = of.state_size + of.input_features;
  const int state_chunks = tiles_of(of.gates, chunk_columns(arithmetic));
  const int weight_chunks = tiles_of(of.batch, chunk_columns(arithmetic));
  GradientSchedule s{};
  if (float32) {
    s.state = gradient_tiles(share(plan.shares_state),
                             plan.ranks,
                             plan.rows,
                             plan.state_columns,
                             of.batch,
                             of.d_old_h ? of.state_size : 0,
                             of.d_input ? of.input_features : 0,
                             state_chunks,
                             plan.state_parts);
  } else {
    // Starts at a whole tile, so that d_input has the same bits with and without d_old_h.
    const int64_t first_row = of.d_old_h ? 0 : of.state_size / plan.rows * plan.rows;
    const int64_t end_row = of.d_input ? width : of.d_old_h ? of.state_size : first_row;
    s.state = gradient_tiles(share(plan.shares_state),
                             plan.ranks,
                             plan.rows,
                             plan.state_columns,
                             end_row - first_row,
                             of.batch,
                             0,
                             state_chunks,
                             plan.state_parts);
    s.state.first_row = static_cast<int>(first_row);
  }
  s.weights = gradient_tiles(share(plan.shares_weights),
                             plan.ranks,
                             plan.rows,
                             plan.weight_columns,
                             of.d_weights ? of.gates : 0,
                             one_segment ? width : of.state_size,
                             one_segment ? 0 : of.input_features,
                             weight_chunks,
                             plan.weight_parts);
  // In float32, the rows of a sequence's gradient do not fit L2.
  s.order = float32 ? WeightOrder::kByTurn : WeightOrder::kByCluster;
  // The sums that ranks send take the place of the operands in float32, so that nothing may follow
  // them, and could otherwise overwrite a tile that is being written.
  const bool state_shares = s.state.share == RanksShare::kK;
  const bool weights_share = s.weights.share == RanksShare::kK;
  s.weights_first = float32 ? state_shares : weights_share;
  // A cluster has at most one tile whose K is shared.
  const int sharing = (state_shares ? s.state.units : 0) + (weights_share ? s.weights.units : 0);
  // The cost of a unit in chunks, epilogue included: what the estimates of a plan take for it would
  // divide some products worse, by up to a fifth of their time. Tiles of d_weights whose K is
  // shared are not distributed by cost.
  const double state_cost = double(state_chunks) / (state_shares ? plan.ranks : s.state.parts) *
                                (plan.state_columns == plan.weight_columns ? 1 : 0.75) +
                            (float32 && state_shares ? kSharedTileCost : kTileCost);
  const double weight_cost =
      weights_share ? 1e6
                    : double(weight_chunks) / s.weights.parts + (float32 ? kTileCost
                                                                 : plan.state_columns == 256 ? 3
                                                                                             : 1.5);
  s.shares = share_gradients(s.state.units,
                             s.weights.units,
                             std::max(plan.blocks / plan.ranks, sharing),
                             state_cost,
                             weight_cost);
  return s;
}

inline GradientSchedule schedule_gradients(Arithmetic arithmetic,
                                           const BackwardProblem& p,
                                           const GradientPlan& plan) {
  return schedule_gradients(arithmetic,
                            {.batch = p.batch,
                             .input_features = p.input_features,
                             .state_size = p.state_size,
                             .gates = p.gates,
                             .d_old_h = p.d_old_h != nullptr,
                             .d_input = p.d_input != nullptr,
                             .d_weights = p.d_weights.any_wanted()},
                            plan,
                            has_one_segment(arithmetic, p));
}

}  // namespace lltm::cuda
