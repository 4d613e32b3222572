// The cost model: estimates the time of each candidate from the sizes of a problem and what is
// known about a GPU. Plain host code that queries no device.
//
// The time of a kernel with tiles is
//     waves * (chunks of K per rank * chunk + block) + exchange within the cluster + traffic,
// where a wave is as many blocks as are resident at once. The kernels of a sequence's steps
// overlap: see step_time() in model.cpp. The constants, which are fitted to measurements, are in
// costs.h.
#pragma once

#include "costs.h"
#include "problem.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace lltm::cuda {

/// The largest cluster that every GPU with clusters supports.
constexpr int kLargestCluster = 8;

/// What the model knows about a GPU, or about the slice of one that a process has.
struct DeviceFacts {
  int multiprocessors = 0;
  int shared_bytes_a_block = 0;
  bool tiles = false;  // mma.sync and cp.async: sm_80 and newer
  bool wgmma = false;  // compute capability 9.0, and code built for 90a
  // The number of blocks, each filling a multiprocessor, that are resident at once in clusters of
  // 1, 2, ... blocks. Zero where such clusters are not available. A cluster lies within one GPC.
  std::array<int, kLargestCluster> resident{};
  // The same of blocks of which two fill a multiprocessor: at least twice as many.
  std::array<int, kLargestCluster> resident_by_two{};
  const Costs* costs = &kH200Costs;

  bool operator==(const DeviceFacts&) const = default;
  bool clusters() const { return resident[1] > 0; }
  int resident_in_clusters_of(int blocks) const {
    return blocks <= kLargestCluster ? resident[static_cast<size_t>(blocks - 1)] : 0;
  }
  int resident_by_two_in_clusters_of(int blocks) const {
    return blocks <= kLargestCluster ? resident_by_two[static_cast<size_t>(blocks - 1)] : 0;
  }
};

/// What the candidates know of a problem.
struct ForwardShape {
  std::optional<Arithmetic> arithmetic;  // none for float64
  int64_t batch, input_features, state_size;
  int64_t pack_bytes = 0;  // of the matrices that TMA cannot describe
  bool may_pack = true;    // whether these may be copied into rows that it can describe
  bool overlaps = false;   // a step of a sequence, whose kernel starts during the previous one
  bool weights_in_lines = true;    // rows of weights start at cache lines, as packed rows do
  double states_across_lines = 0;  // the share of the columns of old_h and input whose rows do not
  int64_t input_offset = 0;        // columns by which input's first box starts before its own
  RowAlignment rows = RowAlignment::kVector;  // in both column ranges of weights, too

  bool operator==(const ForwardShape&) const = default;
  int64_t width() const { return state_size + input_features; }
  int64_t gates() const { return 3 * state_size; }
  bool vector_rows() const { return rows == RowAlignment::kVector; }
};

/// What Hopper's kernels need packed first, and where their boxes start.
struct ForwardPacks {
  bool packs_input = false, packs_weights = false, packs_old_h = false;
  int64_t input_lead = 0, input_shift = 0;  // as in ForwardProblem

  bool packs() const { return packs_input || packs_weights || packs_old_h; }
};
/// Whether operands may be packed. They may not in the steps of a sequence.
enum class Packing { kAllowed, kNone };
/// What the candidates know of a problem, of which only sizes, strides and alignment count.
ForwardShape forward_shape(std::optional<Arithmetic> arithmetic,
                           const ForwardProblem& problem,
                           Packing packing,
                           ForwardPacks* packs);

/// How many columns before `first` the first of the boxes that cover `columns` columns has to start
/// so that boxes start at cache lines. Zero if this would add a box to fewer than four.
int64_t line_shift(int64_t first, int64_t columns, int64_t columns_a_line);

/// The time, in microseconds, to copy `bytes` bytes that TMA cannot describe, in a launch of its
/// own.
double packing_time(double bytes, const Costs& costs);

/// A group of candidates, which LLTM_CUDA_PATH can select by its name.
enum class Group { kFewRows, kHopper, kTiles, kLibrary };
std::string_view name_of(Group group);

/// What LLTM_CUDA_PATH selects: a group, or a candidate by its name, and how many blocks share the
/// K of its tiles. By default all candidates, and the number of ranks with the least estimate.
struct Selection {
  std::optional<Group> group = std::nullopt;
  std::string_view name = {};
  int ranks = 0;

  bool operator==(const Selection&) const = default;
};

/// The time of a candidate when `ranks` blocks share the K of a tile.
struct Estimate {
  double us;
  int ranks;
};

/// One way to compute a forward.
struct ForwardCandidate {
  std::string_view name;
  Group group;
  int tile;  // an enumerator of the group's tiles (tile/shapes.h)
  struct {
    int rows, hidden;
    int row_tiles;  // in one cluster, in addition to the ranks
    int max_ranks;  // limited by the shared memory for their sums
  } shape;
  double blocks_a_multiprocessor;
  MemberOf<ForwardCosts, ForwardCosts::Tile> costs;
  bool float32;  // hopper only: three TF32 products
  // As a step of a sequence, hopper only: its costs, and whether blocks of two steps fit a
  // multiprocessor.
  MemberOf<StepCosts, StepCosts::Tile> step_costs = nullptr;
  bool two_steps_fit = false;
};
std::span<const ForwardCandidate> forward_candidates();

/// Whether a candidate computes a problem correctly, even if slowly.
bool supports(const ForwardCandidate& candidate,
              const ForwardShape& shape,
              const DeviceFacts& device);

/// Whether a candidate's sums are as accurate as others' in float32, so that it is chosen unless
/// another one is selected.
bool is_exact(const ForwardCandidate& candidate, const ForwardShape& shape);

/// The time with `ranks` ranks or, by default, the least time over all numbers of ranks; no ranks
/// if the candidate does not support the number. Only for problems that the candidate supports.
Estimate estimate(const ForwardCandidate& candidate,
                  const ForwardShape& shape,
                  const DeviceFacts& device,
                  int ranks = 0);

/// A candidate, and what it was chosen for.
template <typename Candidate, typename EstimateOfCandidate>
struct Choice {
  const Candidate* candidate = nullptr;
  EstimateOfCandidate estimate{};
};
using ForwardChoice = Choice<ForwardCandidate, Estimate>;

/// The selected candidate with the least estimate. What the selection does not support falls back
/// to tiles, then to the library.
ForwardChoice choose_forward(const ForwardShape& shape,
                             const DeviceFacts& device,
                             const Selection& selection = {});

}  // namespace lltm::cuda
