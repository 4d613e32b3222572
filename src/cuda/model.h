// The cost model: what a candidate is expected to take, from the sizes of a problem and what is
// known of a GPU. Plain host code; nothing here asks a device.
//
// A kernel of tiles takes
//     waves * (chunks of K a rank * chunk + block) + what the cluster exchanges + traffic,
// where a wave is as many blocks as are resident at once. The constants are microseconds, and stand
// with the candidates in model.cpp: NVIDIA H200, by replay of captured graphs, 2026-11-22.
#pragma once

#include "problem.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace lltm::cuda {

/// The largest cluster that every GPU with clusters takes.
constexpr int kLargestCluster = 8;

/// What the model knows of a GPU, or of the part of one that a process has.
struct DeviceFacts {
  int multiprocessors = 0;
  int shared_bytes_a_block = 0;
  bool tiles = false;  // mma.sync and cp.async: sm_80 and newer
  bool wgmma = false;  // 9.0, and code built for 90a
  // How many blocks that fill a multiprocessor each are resident at once, in clusters of 1, 2, ...
  // blocks; zero where such clusters are not to be had. Clusters do not span the groups that
  // multiprocessors come in.
  std::array<int, kLargestCluster> resident{};

  bool operator==(const DeviceFacts&) const = default;
  bool clusters() const { return resident[1] > 0; }
  int resident_in_clusters_of(int blocks) const {
    return blocks <= kLargestCluster ? resident[static_cast<size_t>(blocks - 1)] : 0;
  }
};

/// A forward as the model sees it.
struct ForwardShape {
  std::optional<Arithmetic> arithmetic;  // none for float64
  int64_t batch, input_features, state_size;
  int64_t pack_bytes = 0;        // of the matrices that TMA cannot describe
  bool may_pack = true;          // whether these can be copied to rows that it can
  bool overlaps = false;         // a step of a sequence, whose kernel starts during the one before
  bool weights_in_lines = true;  // rows of weights start at lines of the cache, packed ones do
  double states_across_lines = 0;  // the share of columns of old_h and input whose rows do not
  int64_t input_offset = 0;        // how many columns before input's own its first box begins
  bool vector_rows = true;  // all rows start at 16 bytes, those of both halves of weights, too

  bool operator==(const ForwardShape&) const = default;
  int64_t width() const { return state_size + input_features; }
  int64_t gates() const { return 3 * state_size; }
};

/// How many columns before `first` the first box of so many begins, for boxes to start at lines of
/// the cache: none where these are too few for one more box to pay.
int64_t line_shift(int64_t first, int64_t columns, int64_t columns_a_line);

/// A copy of so many bytes that TMA cannot describe, in a launch of its own: microseconds.
double packing_time(double bytes);

/// LLTM_CUDA_PATH takes these too.
enum class Group { kFewRows, kHopper, kTiles, kLibrary };
std::string_view name_of(Group group);

/// What a candidate takes, where `ranks` blocks share the K of a tile.
struct Estimate {
  double us;
  int ranks;
};

/// One way to compute a forward.
struct ForwardCandidate {
  std::string_view name;
  Group group;
  int tile;  // of the group's enumeration in kernels/forward_kernels.h
  struct {
    int rows, hidden;
    int row_tiles;  // in one cluster, beside the ranks
    int max_ranks;  // as many as there is shared memory for their sums
  } shape;
  struct {
    double blocks_a_multiprocessor;
    double chunk, block;  // microseconds
    double overlap = 0;   // what a step of a sequence saves of them
  } cost;
  bool float32;  // for Hopper's: by three TF32 products
};
std::span<const ForwardCandidate> forward_candidates();

/// Whether a candidate can compute a problem, right though perhaps slow.
bool supports(const ForwardCandidate& candidate,
              const ForwardShape& shape,
              const DeviceFacts& device);

/// The least that it takes, over how many ranks share K. For what it supports.
Estimate estimate(const ForwardCandidate& candidate,
                  const ForwardShape& shape,
                  const DeviceFacts& device);

struct ForwardChoice {
  const ForwardCandidate* candidate;
  Estimate estimate;
};

/// The candidate with the least estimate, of all, of a group, or of one name. What the group or the
/// name cannot compute goes to tiles, and what these cannot, to the library.
ForwardChoice choose_forward(const ForwardShape& shape,
                             const DeviceFacts& device,
                             std::optional<Group> group = std::nullopt,
                             std::string_view name = {});

}  // namespace lltm::cuda
