// Choosing among candidates by their estimates, for every operator alike, and remembering choices.
#pragma once

#include "../../cell/cell_type.h"
#include "../scheduler/gradient_plan.h"
#include "../tile/shapes.h"
#include "facts.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

namespace lltm::cuda {

/// A group of candidates, which LLTM_CUDA_PATH can select by its name. The last ones are ways to
/// run a sequence: all steps in one launch, by blocks by themselves, by clusters of blocks or by
/// teams across the grid, or one step after the other, by a candidate of the others.
enum class Group { kFewRows, kHopper, kTiles, kLibrary, kBlock, kCluster, kGrid, kSteps };

constexpr bool runs_all_steps(Group group) {
  return group == Group::kBlock || group == Group::kCluster || group == Group::kGrid;
}

/// What LLTM_CUDA_PATH selects: a group, or a candidate by its name, and how many blocks share the
/// K of its tiles. By default all candidates, and the number of ranks with the least estimate.
struct Selection {
  std::optional<Group> group = std::nullopt;
  std::string_view name = {};
  int ranks = 0;

  bool operator==(const Selection&) const = default;
};

/// The time of a candidate when `ranks` blocks share the K of a tile; zero ranks: it does not
/// support the number. Only backwards have a plan.
struct Estimate {
  double us = 0;
  int ranks = 1;
  GradientPlan plan{};
};

/// The least of the times with 1 to `most` ranks, or the time with `wanted` ranks if that is not
/// zero. time_with(ranks) returns nothing for a number that is not supported; if there is no other,
/// the estimate has no ranks.
template <typename TimeWith>
Estimate best_ranks(int most, int wanted, const TimeWith& time_with) {
  Estimate best{0, 0};
  for (int ranks = 1; ranks <= most; ++ranks) {
    if (wanted != 0 && ranks != wanted) {
      continue;
    }
    if (const std::optional<double> us = time_with(ranks);
        us && (best.ranks == 0 || *us < best.us)) {
      best = {*us, ranks};
    }
  }
  return best;
}

/// One way to compute a problem of a Shape: a row of a table.
template <typename Shape>
struct Candidate {
  std::string_view name;
  Group group;
  typename Shape::Tile tile{};    // the row tiles of a cluster are in addition to the ranks
  typename Shape::Times times{};  // of this tile
  /// Whether it computes a problem correctly, even if slowly.
  bool (*supports)(const Candidate&, const Shape&, const DeviceFacts&);
  /// The time with `ranks` ranks or, if these are zero, as always without ranks, the least over all
  /// numbers of ranks. Only for problems that it supports.
  Estimate (*estimate)(const Candidate&, const Shape&, const DeviceFacts&, int ranks);
  /// Whether it is accurate enough to be chosen without being selected; null if it always is.
  bool (*is_exact)(const Candidate&, const Shape&) = nullptr;
  CellType cell = CellType::kLltm;  // whose kernel it is
  int most_ranks = 1;               // limited by the shared memory for their sums
  bool float32 = false;  // hopper: three TF32 products; recurrences: multiply-adds, also for TF32
  // A forward's by mma.sync, and a recurrence's: the blocks of a multiprocessor.
  double blocks_a_multiprocessor = 1;
  // A forward's by wgmma: whether blocks of two steps of a sequence fit one multiprocessor
  // together.
  bool two_steps_fit = false;
  bool any_state_size = false;  // a step of a backward by wgmma; others need multiples of four

  /// Whether blocks may share the K of its tile.
  bool has_ranks() const {
    return tile.rows > 0 && (group == Group::kHopper || group == Group::kTiles);
  }
};

/// The table of a Shape.
template <typename Shape>
std::span<const Candidate<Shape>> candidates();

/// For the candidates of the library.
template <typename Shape>
bool supports_everything(const Candidate<Shape>&, const Shape&, const DeviceFacts&) {
  return true;
}

/// Whether a candidate computes a problem correctly, even if slowly.
template <typename Shape>
bool supports(const Candidate<Shape>& candidate, const Shape& shape, const DeviceFacts& device) {
  return candidate.supports(candidate, shape, device);
}

/// Only for problems that the candidate supports.
template <typename Shape>
Estimate estimate(const Candidate<Shape>& candidate,
                  const Shape& shape,
                  const DeviceFacts& device,
                  int ranks = 0) {
  return ranks != 0 && !candidate.has_ranks() ? Estimate{0, 0}
                                              : candidate.estimate(candidate, shape, device, ranks);
}

template <typename Shape>
bool is_exact(const Candidate<Shape>& candidate, const Shape& shape) {
  return candidate.is_exact == nullptr || candidate.is_exact(candidate, shape);
}

/// The estimate of a candidate, unless it does not support the problem or the number of ranks.
template <typename Shape>
std::optional<Estimate> estimate_if_supported(const Candidate<Shape>& candidate,
                                              const Shape& shape,
                                              const DeviceFacts& device,
                                              int ranks = 0) {
  if (!supports(candidate, shape, device)) {
    return std::nullopt;
  }
  const Estimate time = estimate(candidate, shape, device, ranks);
  return time.ranks > 0 ? std::optional(time) : std::nullopt;
}

/// A candidate, and what it was chosen for.
template <typename Shape>
struct Choice {
  const Candidate<Shape>* candidate = nullptr;
  Estimate estimate{};
};

/// The candidate with the least estimate among those for which wanted(candidate) is true.
template <typename Shape, typename Wanted>
Choice<Shape> best_of(const Shape& shape,
                      const DeviceFacts& device,
                      const Wanted& wanted,
                      int ranks = 0) {
  Choice<Shape> best;
  for (const Candidate<Shape>& candidate : candidates<Shape>()) {
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

/// Whether a candidate of a Shape has the selected name.
template <typename Shape>
bool selects_by_name(const Selection& selection) {
  return std::ranges::any_of(candidates<Shape>(),
                             [&](const auto& of) { return of.name == selection.name; });
}

/// The candidate with the least estimate: the one with the selected name, among those of the
/// selected group, or, if neither is selected or the selection is another operator's, among those
/// that are exact. What the selection does not support falls back to tiles, then to the library.
template <typename Shape>
Choice<Shape> choose(const Shape& shape,
                     const DeviceFacts& device,
                     const Selection& selection = {}) {
  const bool by_name = selects_by_name<Shape>(selection);
  const bool by_group = selection.group && *selection.group <= Group::kLibrary;
  Choice<Shape> best = best_of(
      shape,
      device,
      [&](const auto& of) {
        return by_name    ? of.name == selection.name
               : by_group ? of.group == *selection.group
                          : is_exact(of, shape);
      },
      by_name ? selection.ranks : 0);
  for (const Group other : {Group::kTiles, Group::kLibrary}) {
    if (best.candidate == nullptr) {
      best = best_of(shape, device, [&](const auto& of) { return of.group == other; });
    }
  }
  return best;
}

/// Returns choose(shape, device, selection), which must depend on its arguments only, and remembers
/// the last choices of a thread: a choice takes a microsecond or more, and a program keeps calling
/// with the same few sizes. The memory of the selected name must outlive the thread, as that of a
/// candidate's name does.
template <auto choose, typename Shape>
auto recent_choice(const Shape& shape, const DeviceFacts& device, const Selection& selection) {
  using Question = std::tuple<Shape, DeviceFacts, Selection>;
  using Choice = decltype(choose(shape, device, selection));
  constexpr int kSlotBits = 4;
  thread_local std::array<std::pair<std::optional<Question>, Choice>, 1 << kSlotBits> entries;
  // Sizes are often multiples of a power of two; the upper bits of the product depend on all bits.
  const auto sizes =
      static_cast<uint64_t>(shape.batch * 7 + shape.input_features * 3 + shape.state_size);
  auto& [answered, choice] = entries[sizes * 0x9E3779B97F4A7C15 >> (64 - kSlotBits)];
  if (!answered || *answered != std::tie(shape, device, selection)) {
    choice = choose(shape, device, selection);
    answered.emplace(shape, device, selection);
  }
  return choice;
}

}  // namespace lltm::cuda
