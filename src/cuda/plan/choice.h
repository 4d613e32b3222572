// Choosing among candidates by their estimates, for every operator alike, and remembering choices.
#pragma once

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

/// A group of candidates, which LLTM_CUDA_PATH can select by its name.
enum class Group { kFewRows, kHopper, kTiles, kLibrary };

/// How a sequence is run, which LLTM_CUDA_PATH can select: all steps in one launch, by blocks by
/// themselves or by clusters of blocks, or one step after the other.
enum class SequenceKernel { kBlock, kCluster, kSteps };

/// What LLTM_CUDA_PATH selects: a group, or a candidate by its name, and how many blocks share the
/// K of its tiles; or how sequences are run. By default all candidates, and the number of ranks
/// with the least estimate.
struct Selection {
  std::optional<Group> group = std::nullopt;
  std::string_view name = {};
  int ranks = 0;
  std::optional<SequenceKernel> sequence = std::nullopt;

  bool operator==(const Selection&) const = default;
};

/// The time of a candidate when `ranks` blocks share the K of a tile.
struct Estimate {
  double us;
  int ranks;
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

/// A candidate, and what it was chosen for.
template <typename Candidate, typename EstimateOfCandidate>
struct Choice {
  const Candidate* candidate = nullptr;
  EstimateOfCandidate estimate{};
};

/// Whether a candidate is accurate enough to be chosen without being selected. Some of the
/// forward are not (forward.h).
template <typename Candidate, typename Shape>
bool is_exact(const Candidate&, const Shape&) {
  return true;
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

/// The candidate with the least estimate: the one with the selected name, among those of the
/// selected group, or, if neither is selected or the name is another operator's, among those that
/// are exact. What the selection does not support falls back to tiles, then to the library.
template <typename Candidate, typename Shape>
auto choose(std::span<const Candidate> candidates,
            const Shape& shape,
            const DeviceFacts& device,
            const Selection& selection) {
  using Found = decltype(estimate_if_supported(candidates[0], shape, device, 0));
  const auto best_of = [&](const auto& wanted, int ranks) {
    Choice<Candidate, typename Found::value_type> best;
    for (const Candidate& candidate : candidates) {
      if (!wanted(candidate)) {
        continue;
      }
      if (const Found found = estimate_if_supported(candidate, shape, device, ranks);
          found && (best.candidate == nullptr || found->us < best.estimate.us)) {
        best = {&candidate, *found};
      }
    }
    return best;
  };
  const auto has_the_name = [&](const Candidate& of) { return of.name == selection.name; };
  auto best =
      std::ranges::any_of(candidates, has_the_name)
          ? best_of(has_the_name, selection.ranks)
          : best_of(
                [&](const Candidate& of) {
                  return selection.group ? of.group == *selection.group : is_exact(of, shape);
                },
                0);
  for (const Group other : {Group::kTiles, Group::kLibrary}) {
    if (best.candidate == nullptr) {
      best = best_of([&](const Candidate& of) { return of.group == other; }, 0);
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
  if (const Question question(shape, device, selection); answered != question) {
    choice = choose(shape, device, selection);
    answered = question;
  }
  return choice;
}

}  // namespace lltm::cuda
