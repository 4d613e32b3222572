// Which cluster of the grid computes which units of the backward's products. The units are
// distributed by cost, and each cluster knows its own from the start.
#pragma once

#include "gradient_units.h"

#include <algorithm>
#include <cstdint>

namespace lltm::cuda {

/// How many units of both products each cluster computes.
struct GradientShares {
  int clusters;
  EvenShares states;
  // Clusters without an additional unit of the state product first get `lead` units of the weight
  // product each. The rest of these is divided evenly among all clusters; the remainder goes to
  // those with a lead first.
  int lead;
  EvenShares rest;

  LLTM_HOST_DEVICE int busy() const { return states.with_one_more; }
  LLTM_HOST_DEVICE int others() const { return clusters - busy(); }
  LLTM_HOST_DEVICE int turn(int cluster) const {
    return cluster < busy() ? others() + cluster : cluster - busy();
  }
  LLTM_HOST_DEVICE int lead_of(int turn) const { return turn < others() ? lead : 0; }
  LLTM_HOST_DEVICE int states_of(int cluster) const { return states.of(cluster); }
  LLTM_HOST_DEVICE int weights_of(int cluster) const {
    return lead_of(turn(cluster)) + rest.of(turn(cluster));
  }

  /// The time until the last cluster is done, if a unit takes these times.
  double makespan(double state, double weight) const {
    const auto time_of = [&](int cluster) {
      return states_of(cluster) * state + weights_of(cluster) * weight;
    };
    // The first cluster of either kind has the most to do.
    return clusters > 0 ? std::max(time_of(0), time_of(busy())) : 0;
  }
};

/// Distributes the units to at most `clusters` clusters, so that all are done at about the same
/// time. The costs are per unit.
inline GradientShares share_gradients(
    int states, int weights, int clusters, double state_cost, double weight_cost) {
  clusters = std::min(clusters, states + weights);
  if (clusters == 0) {
    return {};
  }
  const EvenShares state_shares = even_shares(states, clusters);
  const int others = clusters - state_shares.with_one_more;
  const auto with_lead = [&](int lead) {
    return GradientShares{.clusters = clusters,
                          .states = state_shares,
                          .lead = lead,
                          .rest = even_shares(weights - lead * others, clusters)};
  };
  if (others == clusters) {
    return with_lead(0);
  }
  const int most = weights / others;
  const int lead = std::min(static_cast<int>(state_cost / weight_cost), most);
  const GradientShares less = with_lead(lead), more = with_lead(std::min(lead + 1, most));
  return more.makespan(state_cost, weight_cost) < less.makespan(state_cost, weight_cost) ? more
                                                                                         : less;
}

/// The order of the weight product's units: each cluster computes consecutive ones, which have the
/// same left operand; or all clusters compute consecutive ones at a time, so that what these read
/// in common is in L2.
enum class WeightOrder { kByCluster, kByTurn };

struct GradientSchedule {
  GradientTiles state, weights;
  GradientShares shares;
  WeightOrder order;
  bool weights_first;  // whether a cluster computes its units of the weight product first

  LLTM_HOST_DEVICE const GradientTiles& tiles(bool of_weights) const {
    return of_weights ? weights : state;
  }

  LLTM_HOST_DEVICE int64_t floats_of_parts() const {
    return state.floats_of_parts() + weights.floats_of_parts();
  }

  /// Calls work(unit) for what rank `rank` of a cluster computes, in order.
  template <typename Do>
  LLTM_HOST_DEVICE void for_each_unit(int cluster, int rank, const Do& work) const {
    const int states = shares.states_of(cluster);
    const int count = states + shares.weights_of(cluster);
    const int before = weights_first ? count - states : states;  // of the first product
#if defined(__CUDA_ARCH__)  // the host's compiler does not know this pragma
#pragma unroll 1
#endif
    for (int i = 0; i < count; ++i) {
      const bool of_weights = (i >= before) != weights_first;
      const int number = i < before ? i : i - before;
      const GradientTiles& all = tiles(of_weights);
      GradientUnit unit = all.unit(
          of_weights ? weight_unit(cluster, number) : cluster + number * shares.clusters, rank);
      unit.of_weights = of_weights;
      // The last ranks may have nothing left to do.
      if (unit.part < all.parts && unit.tile < all.tiles()) {
        work(unit);
      }
    }
  }

 private:
  LLTM_HOST_DEVICE int weight_unit(int cluster, int number) const {
    const int turn = shares.turn(cluster), others = shares.others();
    if (order == WeightOrder::kByCluster) {
      return shares.lead * (turn < others ? turn : others) + shares.rest.first(turn) + number;
    }
    const int of_lead = shares.lead_of(turn);
    return number < of_lead ? number * others + turn
                            : shares.lead * others + (number - of_lead) * shares.clusters + turn;
  }
};

}  // namespace lltm::cuda
