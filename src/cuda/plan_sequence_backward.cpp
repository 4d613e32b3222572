// The tiles of a step are chosen by an estimate in microseconds, fitted to the times, by graph
// replay on an H200, of 565 random shapes with each tile and split (2026-11-22). Its choices take
// 1.02 times as long as the best ones on average, and at most 1.09 times for nine shapes in ten.
#include "plan_sequence_backward.h"

#include <algorithm>
#include <limits>

namespace lltm::cuda {
namespace {

/// A way to compute a step, and its estimated time.
struct StepEstimate {
  SequenceGradientPlan plan;
  double us = std::numeric_limits<double>::infinity();
};

/// The estimate for a tile with its best split.
template <typename Tile>
StepEstimate estimate(const SequenceGradientShape& shape,
                      const DeviceFacts& device,
                      Tile tile,
                      int64_t tile_rows,
                      int64_t tile_columns,
                      const SequenceBackwardCosts::Tile& costs) {
  const SequenceBackwardCosts& all = device.costs->sequence_backward;
  const int64_t tiles = ceil_div(shape.rows, tile_rows) * ceil_div(shape.state_size, tile_columns);
  const int64_t chunks = ceil_div(3 * shape.state_size, 128 / element_size(*shape.arithmetic));
  const auto rows = static_cast<double>(std::min(shape.rows, tile_rows));
  const double chunk_bytes = 128 * (rows + static_cast<double>(tile_columns));
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
    const double chunk = std::max(costs.chunk.of(*shape.arithmetic) * (shares ? costs.shared : 1),
                                  active * chunk_bytes / all.chunk_rate);
    const double finish = costs.finish * rows / static_cast<double>(tile_rows) / split +
                          (split > 1 ? costs.exchange : 0);
    const double us = static_cast<double>(ceil_div(blocks, resident)) *
                      (all.launch + static_cast<double>(ceil_div(chunks, split)) * chunk + finish);
    if (us < best.us) {
      best = {{tile, split}, us};
    }
  }
  return best;
}

/// A product by ATen and a pointwise kernel.
double estimate_library(const SequenceGradientShape& shape, const SequenceBackwardCosts& costs) {
  const SequenceBackwardCosts::Library& of = costs.library.in.of(*shape.arithmetic);
  const auto rows = static_cast<double>(shape.rows);
  const auto state_size = static_cast<double>(shape.state_size);
  const double weights = 3 * state_size * state_size;
  const int size = element_size(*shape.arithmetic);
  const double rate = of.rate * std::clamp(rows / costs.library.rows, 0.1, 1.0);
  const double product = std::max(2 * rows * weights / rate, weights * size / of.read_rate);
  const bool vector_rows = shape.state_size * size % 16 == 0;
  return costs.library.beside_others *
         (of.launch + product * (vector_rows ? 1 : of.unaligned) + rows * state_size * of.element);
}

/// Whether wgmma, by three TF32 products, supports the step. Its blocks start later than those of
/// mma.sync.
bool takes_wgmma(const SequenceGradientShape& shape, const DeviceFacts& device) {
  // TMA counts rows in 32 bits.
  return shape.arithmetic == Arithmetic::kFloat32 && device.wgmma &&
         shape.rows <= INT32_MAX / std::max<int64_t>(shape.steps, 1) - 128;
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
  const SequenceBackwardCosts& costs = device.costs->sequence_backward;
  StepEstimate best;
  const auto consider = [&](const StepEstimate& other) {
    best = other.us < best.us ? other : best;
  };
  if (takes_wgmma(shape, device) && group != Group::kTiles) {
    consider(
        estimate(shape, device, Float32GradientTile::k64x96, 64, 96, costs.wgmma_float32_64x96));
    consider(
        estimate(shape, device, Float32GradientTile::k128x96, 128, 96, costs.wgmma_float32_128x96));
  }
  if (group != Group::kHopper || best.us == std::numeric_limits<double>::infinity()) {
    consider(estimate(shape, device, SequenceGradientTile::k32x32, 32, 32, costs.tiles_32x32));
    consider(estimate(shape, device, SequenceGradientTile::k64x64, 64, 64, costs.tiles_64x64));
  }
  if (!group && estimate_library(shape, costs) < best.us) {
    return std::nullopt;
  }
  return best.plan;
}

}  // namespace lltm::cuda
