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
    if (const auto found = estimate(candidate, shape, device, ranks);
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

bool supports(const Candidate& of, const Shape& shape, const DeviceFacts& device) {
  if (of.group == Group::kLibrary) {
    return true;
  }
  // Tiles are counted in 32 bits; only a one-column state of 2^30 rows or more could exceed that
  // and still fit a GPU's memory. A recurrence counts rows.
  const int64_t columns = shape.work == Work::kBackward ? shape.width() : shape.state_size;
  const bool is_counted = shape.work == Work::kSequence ||
                          ceil_div(shape.batch, 16) * ceil_div(columns, 8) < (int64_t{1} << 28);
  const bool is_of_group =
      of.group == Group::kHopper
          ? device.wgmma && of.float32 == (shape.arithmetic == Arithmetic::kFloat32)
          : of.group != Group::kTiles || shape.cell == CellType::kLltm;
  return shape.arithmetic && device.tiles && is_counted && is_of_group &&
         (of.supports == nullptr || of.supports(of, shape, device));
}

Time estimate(const Candidate& of, const Shape& shape, const DeviceFacts& device, int ranks) {
  Time best;
  if (!supports(of, shape, device) || (ranks != 0 && !of.has_ranks())) {
    return best;
  }
  const int first = std::max(ranks, 1),
            last = ranks != 0 ? std::min(ranks, of.most_ranks) : of.most_ranks;
  for (int count = first; count <= last; ++count) {
    if (auto found = of.estimate(of, shape, device, count);
        found && (!best || found->us < best->us)) {
      best = found;
      best->ranks = count;
    }
  }
  return best;
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
