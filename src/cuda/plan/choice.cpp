#include "choice.h"

#include <algorithm>

namespace lltm::cuda {
namespace {

/// The candidate with the least estimate among those for which wanted(candidate) is true.
template <typename Wanted>
Choice best_of(const Shape& shape, const DeviceFacts& device, const Wanted& wanted, int ranks = 0) {
  Choice best;
  for (const Candidate& candidate : candidates(shape.work)) {
    if (!wanted(candidate)) {
      continue;
    }
    if (const auto found = estimate_if_supported(candidate, shape, device, ranks);
        found && (best.candidate == nullptr || found->us < best.estimate.us)) {
      best = {&candidate, *found};
    }
  }
  return best;
}

}  // namespace

std::span<const Candidate> candidates(Work work) {
  switch (work) {
    case Work::kBackward:
      return backward_candidates();
    case Work::kStepBackward:
      return step_backward_candidates();
    case Work::kSequence:
      return recurrence_candidates();
    default:
      return forward_candidates();
  }
}

std::optional<Estimate> estimate_if_supported(const Candidate& of,
                                              const Shape& shape,
                                              const DeviceFacts& device,
                                              int ranks) {
  if (!supports(of, shape, device)) {
    return std::nullopt;
  }
  const Estimate time = estimate(of, shape, device, ranks);
  return time.ranks > 0 ? std::optional(time) : std::nullopt;
}

Choice choose(const Shape& shape, const DeviceFacts& device, const Selection& selection) {
  const auto all = candidates(shape.work);
  const bool by_name = std::ranges::find(all, selection.name, &Candidate::name) != all.end();
  const bool by_group = selection.group && *selection.group != Group::kSteps &&
                        runs_all_steps(*selection.group) == (shape.work == Work::kSequence);
  Choice best = best_of(
      shape,
      device,
      [&](const Candidate& of) {
        return by_name    ? of.name == selection.name
               : by_group ? of.group == *selection.group
                          : is_exact(of, shape);
      },
      by_name ? selection.ranks : 0);
  for (const Group other : {Group::kTiles, Group::kLibrary}) {
    if (best.candidate == nullptr) {
      best = best_of(shape, device, [&](const Candidate& of) { return of.group == other; });
    }
  }
  best.is_selected = by_name || by_group;
  return best;
}

}  // namespace lltm::cuda
