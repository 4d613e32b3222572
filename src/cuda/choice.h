// Choosing among candidates by their estimates, the forward's and the backward's alike.
#pragma once

#include "model.h"

#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

namespace lltm::cuda {

/// The candidate with the least estimate: the one with a name, among those of a group, or, if
/// neither is given, among those that `by_default` accepts. What the selection does not support
/// falls back to tiles, then to the library. `estimate_of` returns std::nullopt for a candidate
/// that does not support the problem.
template <typename Candidate, typename ByDefault, typename EstimateOf>
auto choose(std::span<const Candidate> candidates,
            std::optional<Group> group,
            std::string_view name,
            const ByDefault& by_default,
            const EstimateOf& estimate_of) {
  using Estimate = typename std::invoke_result_t<EstimateOf, const Candidate&>::value_type;
  const auto best_of = [&](const auto& wanted) {
    Choice<Candidate, Estimate> best;
    for (const Candidate& candidate : candidates) {
      if (!wanted(candidate)) {
        continue;
      }
      if (const auto estimate = estimate_of(candidate);
          estimate && (best.candidate == nullptr || estimate->us < best.estimate.us)) {
        best = {&candidate, *estimate};
      }
    }
    return best;
  };
  auto best = best_of([&](const Candidate& of) {
    return !name.empty() ? of.name == name : group ? of.group == *group : by_default(of);
  });
  for (const Group other : {Group::kTiles, Group::kLibrary}) {
    if (best.candidate == nullptr) {
      best = best_of([&](const Candidate& of) { return of.group == other; });
    }
  }
  return best;
}

}  // namespace lltm::cuda
