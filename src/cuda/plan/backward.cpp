// The candidates for the backward: what each supports, its tiles and its estimated time. Of an LSTM
// and a GRU there are the products over all steps of a sequence, by wgmma in float32 or by the
// library, and the backward of one step with few rows.
#include "backward.h"

#include "../scheduler/gradient_schedule.h"
#include "times.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace lltm::cuda {
namespace {

/// The largest cluster with which all tiles are resident at once. More multiprocessors read the
/// weights faster.
int most_ranks(const DeviceFacts& device, int64_t tiles, int64_t chunks, double blocks_per_sm) {
  for (int ranks = kLargestCluster; ranks > 1; --ranks) {
    if (ranks <= chunks && static_cast<double>(tiles * ranks) <=
                               blocks_per_sm * device.resident_in_clusters_of(ranks)) {
      return ranks;
    }
  }
  return 1;
}

// The whole backward in one launch, without tiles. A thread takes four columns or one.
bool few_rows_supports(const Candidate&, const Shape& s, const DeviceFacts&) {
  return s.forms_d_old_h && s.batch <= kFewRows;
}

int few_rows_ranks(const Shape& s, const DeviceFacts& device) {
  // One block per multiprocessor, or two, of which 224 are resident in clusters of up to seven.
  const int64_t strips = s.column_tiles(64), groups = ceil_div(s.state_size, 16);
  int ranks = most_ranks(device, strips, groups, 1);
  if (ranks < 4) {
    ranks = static_cast<int>(std::clamp<int64_t>(224 / strips, 1, std::min<int64_t>(groups, 7)));
    while (ranks > 1 && device.resident_in_clusters_of(ranks) == 0) {
      --ranks;
    }
  }
  return ranks;
}

Estimate few_rows_time(const Shape& s, const DeviceFacts& device) {
  const auto& costs = device.costs->backward.few_rows;
  const BackwardCosts::FewRows& of = s.in_floats() ? costs.floats : costs.halves;
  const int ranks = few_rows_ranks(s, device);
  // Blocks that share rows are resident at once.
  const double waves = ranks > 1 ? 1 : rounds(s.column_tiles(64), 2 * device.multiprocessors);
  // One column at a time, 16 bits take as many instructions as float.
  const BackwardCosts::FewRows& walked = s.vector_rows ? of : costs.floats;
  const double group = (walked.group + walked.group_a_row * static_cast<double>(s.batch)) *
                       (s.vector_rows ? 1 : costs.unaligned);
  const TiledTime tiled{.waves = waves,
                        .chunks = rounds(ceil_div(s.state_size, 16), ranks),
                        .chunk = group,
                        .reading = 2 * s.weights_bytes() / of.rate};
  return {of.launch + tiled.time(device), 1, {.ranks = ranks}};
}

// TMA reads rows that start anywhere, or they are packed. The kernels count rows in int, also those
// by which the last tile exceeds the matrix.
bool wgmma_supports(const Candidate& of, const Shape& s, const DeviceFacts&) {
  constexpr int64_t kMost = int64_t{1} << 30;
  return (of.float32 || s.cell == CellType::kLltm) && s.batch < kMost && s.gates() < kMost &&
         s.width() < kMost;
}

// Large products take the largest tiles that the shared memory of sm_80 and sm_90 holds.
GradientPlan tiles_plan(const Shape& s, const DeviceFacts& device) {
  const auto squares = [](int size, int ranks) {
    return GradientPlan{
        .rows = size, .state_columns = size, .weight_columns = size, .ranks = ranks};
  };
  const int64_t count = ceil_div(s.batch, 64) * s.column_tiles(64);
  if (count >= 256 && device.shared_bytes_a_block >= 160 * 1024) {
    return squares(128, 1);
  }
  // Fewer ranks than would fit: the tiles of d_weights need multiprocessors, too.
  const int64_t chunks = s.chunks(s.gates());
  const int ranks = !device.clusters()          ? 1
                    : count > 40 && count <= 66 ? static_cast<int>(std::min<int64_t>(2, chunks))
                                                : most_ranks(device, count, chunks, 0.6);
  return squares(64, ranks);
}

Estimate tiles_time(const Shape& s, const DeviceFacts& device) {
  const BackwardCosts::Tiles& of = device.costs->backward.tiles.of(*s.arithmetic);
  const GradientPlan plan = tiles_plan(s, device);
  const int size = plan.rows;
  const bool small = size == 64;
  const auto block = [&](int64_t k, int shares) {
    return TiledTime{.chunks = rounds(s.chunks(k), shares),
                     .chunk = small ? of.small_chunk : of.large_chunk,
                     .rest = small ? of.small_rest : of.large_rest}
        .time(device);
  };
  const double state = block(s.gates(), plan.ranks), weight = block(s.batch, 1);
  const GradientShares shares = share_gradients(
      static_cast<int>(ceil_div(s.batch, size) * s.state_column_tiles(size) * plan.ranks),
      static_cast<int>(ceil_div(s.gates(), size) * s.column_tiles(size)),
      (small ? 2 : 1) * device.multiprocessors,
      state,
      weight);
  return {of.launch + shares.makespan(state, weight) + packing_time(s, /*by_wgmma=*/false, device),
          1,
          plan};
}

Estimate time_by_library(const Shape& s, const DeviceFacts& device) {
  if (!s.arithmetic) {
    return {};  // There is nothing else for float64.
  }
  if (s.batch > INT32_MAX) {
    return {std::numeric_limits<double>::infinity()};  // as in the forward
  }
  const BackwardCosts::Library& of = device.costs->backward.library.of(*s.arithmetic);
  const auto gates = static_cast<double>(s.batch * s.gates());
  const auto columns = static_cast<double>(64 * (s.column_tiles(64) + s.state_column_tiles(64)));
  const bool anywhere = !s.vector_rows;
  const Product product{of.launch + (anywhere ? of.unaligned_launch : 0),
                        (anywhere ? of.unaligned : 1) * 2 * gates * columns,
                        of.rate};
  return {product.time(device) + 3 * s.weights_bytes() / of.weights_rate * (anywhere ? 2 : 1) +
          2 * gates * s.element_bytes() / of.gates_rate};
}

/// The kernel of d_gates, unless `of` has few rows, and the products.
template <Estimate (*time)(const Shape&, const DeviceFacts&)>
Time estimate(const Candidate& of, const Shape& s, const DeviceFacts& device, int) {
  Estimate found = time(s, device);
  if (of.group != Group::kFewRows) {
    found.us += 10 * static_cast<double>(s.batch * s.state_size) * s.element_bytes() /
                device.costs->backward.gate_gradients_rate;
  }
  return found;
}

// Those with few rows compute all of it, the others the products. None has ranks to select.
// clang-format off
constexpr Candidate kCandidates[] = {
    {.name = "backward_few_rows",      .group = Group::kFewRows, .estimate = estimate<few_rows_time>, .supports = few_rows_supports},
    {.name = "backward_wgmma_float32", .group = Group::kHopper,  .estimate = estimate<choose_float32_gradient_plan>, .supports = wgmma_supports, .float32 = true},
    {.name = "backward_wgmma",         .group = Group::kHopper,  .estimate = estimate<choose_gradient_plan>, .supports = wgmma_supports},
    {.name = "backward_tiles",         .group = Group::kTiles,   .estimate = estimate<tiles_time>},
    {.name = "backward_library",       .group = Group::kLibrary, .estimate = estimate<time_by_library>},
};
// clang-format on

}  // namespace

std::span<const Candidate> backward_candidates() {
  return kCandidates;
}

}  // namespace lltm::cuda
