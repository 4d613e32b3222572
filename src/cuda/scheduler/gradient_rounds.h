// The schedule of the backward's products in float32. d_old_h and d_input = d_gates @ weights are
// the "state" product, d_weights = d_gates.T @ [old_h | input] the "weight" product. A unit is a
// tile and a range of its K (gradient_units.h).
//
// The clusters of the grid compute units that follow each other at the same time, so that what they
// read in common is in L2: the rows of a sequence's gradient do not fit it.
#pragma once

#include "../plan/gradient_plan.h"
#include "../tile/shapes.h"
#include "gradient_units.h"

#include <algorithm>
#include <cstdint>

namespace lltm::cuda {

struct GradientRounds {
  GradientTiles state, weights;
  int clusters;
  // The first `busy` clusters have one more unit of the state product than the others. In the
  // meantime each of these computes `lead` units of the weight product. All share the rest.
  int busy, lead;
  // Sums that ranks exchange take the place of the operands, so that nothing may follow them.
  bool weights_first;

  LLTM_HOST_DEVICE int states_of(int cluster) const { return share(state.units, cluster); }
  LLTM_HOST_DEVICE int weights_of(int cluster) const {
    return lead_of(cluster) + share(weights.units - lead * (clusters - busy), turn_of(cluster));
  }

  /// Calls work(unit) for what rank `rank` of a cluster computes, in order.
  template <int kTileRows, typename Do>
  LLTM_HOST_DEVICE void for_each_unit(int cluster, int rank, const Do& work) const {
    const int states = states_of(cluster), count = states + weights_of(cluster);
    const int before = weights_first ? count - states : states;  // of the first product
#if defined(__CUDA_ARCH__)  // the host's compiler does not know this pragma
#pragma unroll 1
#endif
    for (int i = 0; i < count; ++i) {
      const bool of_weights = (i >= before) != weights_first;
      const int number = i < before ? i : i - before;
      const GradientTiles& tiles = of_weights ? weights : state;
      GradientUnit unit =
          tiles.unit(of_weights ? weight_unit(cluster, number) : cluster + number * clusters,
                     rank,
                     kTileRows,
                     kFloat32GradientColumns);
      unit.of_weights = of_weights;
      // The last ranks may have nothing left to do.
      if (unit.part < tiles.parts && unit.tile < tiles.tiles()) {
        work(unit);
      }
    }
  }

 private:
  LLTM_HOST_DEVICE int share(int units, int turn) const {
    return units > turn ? (units - turn + clusters - 1) / clusters : 0;
  }
  LLTM_HOST_DEVICE int lead_of(int cluster) const { return cluster < busy ? 0 : lead; }
  // Busy clusters are the last ones of each round.
  LLTM_HOST_DEVICE int turn_of(int cluster) const {
    return cluster < busy ? clusters - busy + cluster : cluster - busy;
  }
  LLTM_HOST_DEVICE int weight_unit(int cluster, int number) const {
    const int others = clusters - busy, of_lead = lead_of(cluster);
    return number < of_lead ? number * others + cluster - busy
                            : lead * others + (number - of_lead) * clusters + turn_of(cluster);
  }
};

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

/// The cost of a tile besides its chunks, in chunks: one that the ranks of a cluster share, and
/// others.
constexpr double kSharedTileCost = 5, kTileCost = 2;

inline GradientRounds schedule_gradients(const WantedGradients& of,
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
  GradientRounds s{};
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
  s.weights_first = shares_k;
  // A cluster has at most one tile whose K is shared.
  s.clusters = std::min(s.state.units + s.weights.units,
                        std::max(plan.blocks / ranks, shares_k ? s.state.units : 1));
  s.busy = s.clusters > 0 ? s.state.units % s.clusters : 0;
  if (s.busy > 0) {
    const double state_cost =
        double(state_chunks) / ranks + (shares_k ? kSharedTileCost : kTileCost);
    const double weight_cost = double(batch_chunks) / plan.weight_parts + kTileCost;
    s.lead = std::min(static_cast<int>(state_cost / weight_cost + 0.5),
                      s.weights.units / (s.clusters - s.busy));
  }
  return s;
}

}  // namespace lltm::cuda
