// The tiles of a step are chosen by an estimate in microseconds. It is within some 15 % of the
// times, by graph replay on an H200, that (rows, state_size) of (16,128), (32,512), (64,1024),
// (4096,128) and (256,384) take with each tile and split.
#include "plan_sequence_backward.h"

#include <algorithm>
#include <limits>

namespace lltm::cuda {
namespace {

double multiplications(const SequenceGradientShape& shape) {
  const auto state_size = static_cast<double>(shape.state_size);
  return static_cast<double>(shape.rows) * 3 * state_size * state_size;
}

/// A way to compute a step, and its estimated time.
struct StepEstimate {
  SequenceGradientPlan plan;
  double us = std::numeric_limits<double>::infinity();
};

/// A tile of rows x columns, and the times a block takes per chunk of K and to finish the tile by
/// itself.
struct TileCosts {
  int64_t rows, columns;
  double chunk, elements;
  bool two_a_multiprocessor;
};

/// The estimate for a tile with its best split.
template <typename Tile>
StepEstimate estimate(const SequenceGradientShape& shape,
                      const DeviceFacts& device,
                      Tile tile,
                      const TileCosts& costs) {
  constexpr double kLaunch = 2.1;
  const int64_t tiles =
      ceil_div(shape.rows, costs.rows) * ceil_div(shape.state_size, costs.columns);
  const int64_t chunks = ceil_div(3 * shape.state_size, 128 / element_size(*shape.arithmetic));
  StepEstimate best;
  for (int split = 1; split <= kLargestCluster && split <= chunks; ++split) {
    const int resident = device.resident_in_clusters_of(split);
    if (resident == 0) {
      continue;
    }
    const auto load = static_cast<double>(ceil_div(tiles * split, resident));
    const double of_block =
        static_cast<double>(ceil_div(chunks, split)) * costs.chunk + costs.elements / split;
    // Blocks that share a multiprocessor take less time than in sequence.
    const double us =
        kLaunch + of_block * (load > 1 && costs.two_a_multiprocessor ? 0.8 * load : load);
    if (us < best.us) {
      best = {{tile, split}, us};
    }
  }
  return best;
}

/// A product by ATen and a pointwise kernel.
double estimate_library(const SequenceGradientShape& shape) {
  const auto elements = static_cast<double>(shape.rows) * static_cast<double>(shape.state_size);
  const double products = multiplications(shape);
  switch (*shape.arithmetic) {
    case Arithmetic::kFloat32:
      return 10 + 1.5e-5 * elements + 4e-8 * products;
    case Arithmetic::kTf32:
      return 8 + 1.3e-5 * elements + 1e-8 * products;
    default:
      return 7 + 1e-5 * elements + 4e-9 * products;
  }
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
  const bool float32 = shape.arithmetic == Arithmetic::kFloat32;
  StepEstimate best;
  const auto consider = [&](const StepEstimate& other) {
    best = other.us < best.us ? other : best;
  };
  if (takes_wgmma(shape, device) && group != Group::kTiles) {
    consider(estimate(shape, device, Float32GradientTile::k64x96, {64, 96, 0.75, 14, false}));
    consider(estimate(shape, device, Float32GradientTile::k128x96, {128, 96, 1.05, 22, false}));
  }
  if (group != Group::kHopper || best.us == std::numeric_limits<double>::infinity()) {
    const double small_chunk = float32 ? 0.46 : 0.33, large_chunk = float32 ? 1.12 : 0.6;
    consider(
        estimate(shape, device, SequenceGradientTile::k32x32, {32, 32, small_chunk, 1.2, true}));
    consider(
        estimate(shape, device, SequenceGradientTile::k64x64, {64, 64, large_chunk, 6.4, true}));
  }
  if (!group && estimate_library(shape) < best.us) {
    return std::nullopt;
  }
  return best.plan;
}

}  // namespace lltm::cuda
