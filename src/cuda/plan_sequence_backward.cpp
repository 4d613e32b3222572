// The tiles of a step are chosen by an estimate in microseconds, fitted to the times, by graph
// replay on an H200, of 565 random shapes with each tile and split (2026-11-22). Its choices take
// 1.02 times as long as the best ones on average, and at most 1.09 times for nine shapes in ten.
#include "plan_sequence_backward.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace lltm::cuda {
namespace {

/// A way to compute a step, and its estimated time.
struct StepEstimate {
  SequenceGradientPlan plan;
  double us = std::numeric_limits<double>::infinity();
};

/// A tile of rows x columns, and its times: of a chunk of K, to finish a full tile by itself, and
/// to exchange the sums of a cluster.
struct TileCosts {
  int64_t rows, columns;
  double chunk, elements, exchange;
  // How many times as long a chunk takes if two blocks share a multiprocessor. Zero: none do.
  double shared = 0;
};

/// The estimate for a tile with its best split.
template <typename Tile>
StepEstimate estimate(const SequenceGradientShape& shape,
                      const DeviceFacts& device,
                      Tile tile,
                      const TileCosts& costs) {
  constexpr double kLaunch = 1.96;
  constexpr double kChunkRate = 4.46e6;  // bytes per microsecond, of the chunks of all blocks
  const int64_t tiles =
      ceil_div(shape.rows, costs.rows) * ceil_div(shape.state_size, costs.columns);
  const int64_t chunks = ceil_div(3 * shape.state_size, 128 / element_size(*shape.arithmetic));
  const auto rows = static_cast<double>(std::min(shape.rows, costs.rows));
  const double chunk_bytes = 128 * (rows + static_cast<double>(costs.columns));
  StepEstimate best;
  for (int split = 1; split <= kLargestCluster && split <= chunks; ++split) {
    const int64_t blocks = tiles * split;
    const int alone = device.resident_in_clusters_of(split);
    const int resident = costs.shared > 0 ? device.resident_by_two_in_clusters_of(split) : alone;
    if (resident == 0) {
      continue;
    }
    const auto active = static_cast<double>(std::min<int64_t>(blocks, resident));
    const bool shares = costs.shared > 0 && blocks > alone;
    const double chunk =
        std::max(costs.chunk * (shares ? costs.shared : 1), active * chunk_bytes / kChunkRate);
    const double finish = costs.elements * rows / static_cast<double>(costs.rows) / split +
                          (split > 1 ? costs.exchange : 0);
    const double us = static_cast<double>(ceil_div(blocks, resident)) *
                      (kLaunch + static_cast<double>(ceil_div(chunks, split)) * chunk + finish);
    if (us < best.us) {
      best = {{tile, split}, us};
    }
  }
  return best;
}

/// A product by ATen and a pointwise kernel.
double estimate_library(const SequenceGradientShape& shape) {
  struct Costs {
    double launch, rate, read_rate, element, unaligned;
  };
  const auto costs = [&]() -> Costs {
    switch (*shape.arithmetic) {
      case Arithmetic::kFloat32:
        return {7.39, 36.4e6, 1.96e6, 1.96e-5, 1};
      case Arithmetic::kTf32:
        return {6.9, 128e6, 4.56e6, 1.49e-5, 2.05};
      default:
        return {5.33, 256e6, 3.62e6, 1.05e-5, 4.13};
    }
  }();
  const auto rows = static_cast<double>(shape.rows);
  const auto state_size = static_cast<double>(shape.state_size);
  const double weights = 3 * state_size * state_size;
  const int size = element_size(*shape.arithmetic);
  // With few rows, tiles are not full.
  const double rate = costs.rate * std::clamp(rows / 78, 0.1, 1.0);
  const double product = std::max(2 * rows * weights / rate, weights * size / costs.read_rate);
  const bool vector_rows = shape.state_size * size % 16 == 0;
  // Its steps do not overlap: beside other kernels they take longer than by themselves.
  constexpr double kBesideOthers = 1.15;
  return kBesideOthers * (costs.launch + product * (vector_rows ? 1 : costs.unaligned) +
                          rows * state_size * costs.element);
}

/// Whether wgmma, by three TF32 products, supports the step. Its blocks start later than those of
/// mma.sync.
bool takes_wgmma(const SequenceGradientShape& shape, const DeviceFacts& device) {
  // TMA counts rows in 32 bits.
  return shape.arithmetic == Arithmetic::kFloat32 && device.wgmma &&
         shape.rows <= INT32_MAX / std::max<int64_t>(shape.steps, 1) - 128;
}

/// The times of a chunk by mma.sync, with tiles of 32x32 and of 64x64.
std::pair<double, double> chunks_by_mma_sync(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kFloat32:
      return {0.467, 1.07};
    case Arithmetic::kTf32:
      return {0.333, 0.578};
    default:
      return {0.302, 0.536};
  }
}

}  // namespace

std::optional<SequenceGradientPlan> plan_sequence_gradients(const SequenceGradientShape& shape,
                                                            const DeviceFacts& device,
                                                            std::optional<Group> group) {
  // Blocks are counted in 32 bits.
  if (!shape.arithmetic || !device.tiles || group == Group::kLibrary ||
      ceil_div(shape.rows, 32) * ceil_div(shape.state_size, 32) > (1 << 27)) {
    return std::nullopt;
  }
  StepEstimate best;
  const auto consider = [&](const StepEstimate& other) {
    best = other.us < best.us ? other : best;
  };
  if (takes_wgmma(shape, device) && group != Group::kTiles) {
    consider(estimate(shape, device, Float32GradientTile::k64x96, {64, 96, 0.598, 13.1, 2.3}));
    consider(estimate(shape, device, Float32GradientTile::k128x96, {128, 96, 0.869, 21.8, 3.09}));
  }
  if (group != Group::kHopper || best.us == std::numeric_limits<double>::infinity()) {
    const auto [small_chunk, large_chunk] = chunks_by_mma_sync(*shape.arithmetic);
    consider(estimate(
        shape, device, SequenceGradientTile::k32x32, {32, 32, small_chunk, 2.57, 0.531, 1.5}));
    consider(estimate(
        shape, device, SequenceGradientTile::k64x64, {64, 64, large_chunk, 8.23, 0.947, 1.71}));
  }
  if (!group && estimate_library(shape) < best.us) {
    return std::nullopt;
  }
  return best.plan;
}

}  // namespace lltm::cuda
