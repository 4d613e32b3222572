// Choosing among candidates by their estimates, the forward's and the backward's alike.
#pragma once

#include "model.h"

#include <algorithm>
#include <optional>
#include <span>
#include <type_traits>

namespace lltm::cuda {

/// The candidate with the least estimate: the one with the selected name, among those of the
/// selected group, or, if neither is selected or the name is another direction's, among those that
/// `by_default` accepts. What the selection does not support falls back to tiles, then to the
/// library. `estimate_of` takes a candidate and the number of ranks, or 0 for the best, and returns
/// std::nullopt for what is not supported.
template <typename Candidate, typename ByDefault, typename EstimateOf>
auto choose(std::span<const Candidate> candidates,
            const Selection& selection,
            const ByDefault& by_default,
            const EstimateOf& estimate_of) {
  using Estimate = typename std::invoke_result_t<EstimateOf, const Candidate&, int>::value_type;
  const auto best_of = [&](const auto& wanted, int ranks) {
    Choice<Candidate, Estimate> best;
    for (const Candidate& candidate : candidates) {
      if (!wanted(candidate)) {
        continue;
      }
      if (const auto estimate = estimate_of(candidate, ranks);
          estimate && (best.candidate == nullptr || estimate->us < best.estimate.us)) {
        best = {&candidate, *estimate};
      }
    }
    return best;
  };
  const auto has_the_name = [&](const Candidate& of) { return of.name == selection.name; };
  auto best = std::ranges::any_of(candidates, has_the_name)
                  ? best_of(has_the_name, selection.ranks)
                  : best_of(
                        [&](const Candidate& of) {
                          return selection.group ? of.group == *selection.group : by_default(of);
                        },
                        0);
  for (const Group other : {Group::kTiles, Group::kLibrary}) {
    if (best.candidate == nullptr) {
      best = best_of([&](const Candidate& of) { return of.group == other; }, 0);
    }
  }
  return best;
}

/// The estimate of a candidate, unless it does not support the problem or the number of ranks.
template <typename Candidate, typename Shape>
std::optional<Estimate> estimate_if_supported(const Candidate& candidate,
                                              const Shape& shape,
                                              const DeviceFacts& device,
                                              int ranks) {
  if (!supports(candidate, shape, device)) {
    return std::nullopt;
  }
  const Estimate time = estimate(candidate, shape, device, ranks);
  return time.ranks > 0 ? std::optional(time) : std::nullopt;
}

}  // namespace lltm::cuda
