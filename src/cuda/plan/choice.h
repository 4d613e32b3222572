// Choosing among candidates by their estimates, for every operator alike, and remembering choices.
#pragma once

#include "../kernels/recurrence/tile.h"
#include "../scheduler/gradient_plan.h"
#include "../tile/shapes.h"
#include "facts.h"
#include "shape.h"

#include <array>
#include <bit>
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

/// The time of a candidate when `ranks` blocks share the K of a tile. Only backwards have a plan.
struct Estimate {
  double us = 0;
  int ranks = 1;
  GradientPlan plan{};
};

/// An estimate, or nothing if a candidate does not support the problem, or the number of ranks.
using Time = std::optional<Estimate>;

// The times of a tile, in microseconds.

struct ForwardTimes {
  /// As a cell: a chunk of K, and the rest of a block. By mma.sync, the chunk is one of 16 bits.
  struct {
    double chunk, block;
  } cell{};
  /// As a step of a sequence by wgmma: a chunk that waits for the previous step, one of input that
  /// need not, the rest of a block, and what it takes longer if it does not overlap other steps.
  struct {
    double chunk, input_chunk, block, alone;
  } step{};

  static constexpr const char* kNames[] = {
      "cell.chunk", "cell.block", "step.chunk", "step.input_chunk", "step.block", "step.alone"};
};

/// A chunk of K, to finish a full tile by itself, to exchange the sums of a cluster, and how many
/// times as long a chunk takes if two blocks share a multiprocessor. Zero: none do.
struct StepBackwardTimes {
  ByArithmetic<double> chunk{};
  double finish, exchange, shared;

  static constexpr const char* kNames[] = {
      "chunk.float32", "chunk.tf32", "chunk.half", "finish", "exchange", "shared"};
};

/// Of a step: of blocks by themselves at least `latency`, and `busy` for each of those that a
/// multiprocessor runs at once; of a cluster `latency`, and `busy` for each of its rows, which its
/// blocks send to each other.
struct RecurrenceTimes {
  struct {
    double latency, busy;
  } forward, backward;
};

/// One way to do the work of a shape: a row of a table.
struct Candidate {
  std::string_view name;
  Group group;
  /// The time of a problem that it supports with a number of ranks.
  Time (*estimate)(const Candidate&, const Shape&, const DeviceFacts&, int ranks);
  /// Whether it computes a problem correctly, even if slowly, beyond what supports() asks of its
  /// group; null if it does.
  bool (*supports)(const Candidate&, const Shape&, const DeviceFacts&) = nullptr;
  /// Whether it is accurate enough to be chosen without being selected; null if it always is.
  bool (*is_exact)(const Candidate&, const Shape&) = nullptr;
  CellType cell = CellType::kLltm;  // whose kernel it is
  TileShape tile{};                 // the row tiles of a cluster are in addition to the ranks
  int most_ranks = 1;               // limited by the shared memory for their sums
  bool float32 = false;  // hopper: three TF32 products; recurrences: multiply-adds, also for TF32
  // A forward's by mma.sync, and a recurrence's: the blocks of a multiprocessor.
  double blocks_a_multiprocessor = 1;
  bool any_state_size = false;    // a step of a backward by wgmma; others need multiples of four
  std::array<double, 6> times{};  // ForwardTimes or StepBackwardTimes
  RecurrenceTile recurrence{};
  RecurrenceTimes times_of_step{};

  template <typename Times>
  Times times_as() const {
    return std::bit_cast<Times>(times);
  }
  /// Whether blocks may share the K of its tile.
  bool has_ranks() const {
    return tile.rows > 0 && (group == Group::kHopper || group == Group::kTiles);
  }
};

/// The table of some work, which is one of those below.
std::span<const Candidate> candidates(Work work);
std::span<const Candidate> forward_candidates();
std::span<const Candidate> backward_candidates();
std::span<const Candidate> step_backward_candidates();
std::span<const Candidate> recurrence_candidates();

/// Whether a candidate computes a problem correctly, even if slowly.
bool supports(const Candidate& of, const Shape& shape, const DeviceFacts& device);

inline bool is_exact(const Candidate& of, const Shape& shape) {
  return of.is_exact == nullptr || of.is_exact(of, shape);
}

/// The least estimate over all numbers of ranks, or that of one number if it is not zero.
Time estimate(const Candidate& of, const Shape& shape, const DeviceFacts& device, int ranks = 0);

/// A candidate, or none, and what it was chosen for.
struct Choice {
  const Candidate* candidate = nullptr;
  Estimate estimate{};
  bool is_selected = false;  // by its name or group
};

/// The candidate with the least estimate: the one with the selected name, among those of the
/// selected group, or, if neither is selected or the selection is of other work, among those that
/// are exact. What the selection does not support falls back to tiles, then to the library.
Choice choose(const Shape& shape, const DeviceFacts& device, const Selection& selection = {});

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
