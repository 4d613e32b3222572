// The candidates for a step of a sequence's backward: what each supports, and its estimated time.
#include "sequence_gradients.h"

#include <algorithm>

namespace lltm::cuda {
namespace {

constexpr SequenceGradientCandidate kCandidates[] = {
    // clang-format off
    {"sequence_backward_wgmma_64x32",          Group::kHopper, {64, 32},  &SequenceBackwardCosts::wgmma_64x32},
    {"sequence_backward_wgmma_64x64",          Group::kHopper, {64, 64},  &SequenceBackwardCosts::wgmma_64x64, false, true},
    {"sequence_backward_wgmma_128x64",         Group::kHopper, {128, 64}, &SequenceBackwardCosts::wgmma_128x64},
    {"sequence_backward_wgmma_float32_64x96",  Group::kHopper, {64, 96},  &SequenceBackwardCosts::wgmma_float32_64x96, true, true},
    {"sequence_backward_wgmma_float32_128x96", Group::kHopper, {128, 96}, &SequenceBackwardCosts::wgmma_float32_128x96, true},
    {"sequence_backward_tiles_32x32",          Group::kTiles,  {32, 32},  &SequenceBackwardCosts::tiles_32x32},
    {"sequence_backward_tiles_64x64",          Group::kTiles,  {64, 64},  &SequenceBackwardCosts::tiles_64x64},
    {"sequence_backward_library",              Group::kLibrary},
    // clang-format on
};

double weights_bytes(const SequenceGradientShape& shape) {
  return static_cast<double>(shape.gates * shape.state_size) * element_size(*shape.arithmetic);
}

/// The estimate for tiles with the best split, or with the wanted one.
Estimate tiles_time(const SequenceGradientCandidate& of,
                    const SequenceGradientShape& shape,
                    const DeviceFacts& device,
                    int wanted) {
  const SequenceBackwardCosts& costs = device.costs->sequence_backward;
  const SequenceBackwardCosts::Tile& tile = costs.*of.costs;
  const int64_t tiles =
      ceil_div(shape.rows, of.tile.rows) * ceil_div(shape.state_size, of.tile.columns);
  const int64_t chunks = ceil_div(shape.gates, chunk_columns(*shape.arithmetic));
  const auto rows = static_cast<double>(std::min<int64_t>(shape.rows, of.tile.rows));
  const double chunk_bytes = 128 * (rows + of.tile.columns);
  const bool hopper = of.group == Group::kHopper;
  // By wgmma only in 16 bits.
  const bool two_fit = tile.shared > 0 && (!hopper || !is_float(*shape.arithmetic));
  const double chunk_rate = hopper ? device.costs->step.chunk_rate : costs.chunk_rate;
  // A step's share of transposing the weights, which come from memory in every step if L2 has no
  // room for them.
  const double weights = weights_bytes(shape);
  const double transposing = hopper ? device.costs->packing.time(weights) /
                                          static_cast<double>(std::max<int64_t>(shape.steps, 1))
                                    : 0;
  const double least =
      hopper && weights > costs.cache_bytes ? weights / costs.memory_rate + costs.beside_memory : 0;
  const int most = static_cast<int>(std::min<int64_t>(kLargestCluster, chunks));
  return best_ranks(most, wanted, [&](int split) -> std::optional<double> {
    const int64_t blocks = tiles * split;
    const int alone = device.resident_in_clusters_of(split);
    const int resident = device.resident_in_clusters_of(split, two_fit);
    // By wgmma, more blocks than fill the GPU were not measured.
    if (resident == 0 || (hopper && wanted == 0 && split > 1 && blocks > device.multiprocessors)) {
      return std::nullopt;
    }
    const auto active = static_cast<double>(std::min<int64_t>(blocks, resident));
    const bool shares = two_fit && blocks > alone;
    const double chunk = std::max(tile.chunk.of(*shape.arithmetic) * (shares ? tile.shared : 1),
                                  active * chunk_bytes / chunk_rate);
    const double finish =
        tile.finish * rows / of.tile.rows / split + (split > 1 ? tile.exchange : 0);
    const double step =
        static_cast<double>(ceil_div(blocks, resident)) *
        (costs.launch + static_cast<double>(ceil_div(chunks, split)) * chunk + finish);
    return std::max(step, least) + transposing;
  });
}

/// A product by ATen and a pointwise kernel.
double library_time(const SequenceGradientShape& shape, const SequenceBackwardCosts& costs) {
  if (!shape.arithmetic) {
    return 0;  // There is nothing else for float64.
  }
  const SequenceBackwardCosts::Library& of = costs.library.in.of(*shape.arithmetic);
  const auto rows = static_cast<double>(shape.rows);
  const auto state_size = static_cast<double>(shape.state_size);
  const double weights = static_cast<double>(shape.gates) * state_size;
  const int size = element_size(*shape.arithmetic);
  const double rate = of.rate * std::clamp(rows / costs.library.rows, 0.1, 1.0);
  const double product = std::max(2 * rows * weights / rate, weights * size / of.read_rate);
  const bool vector_rows = shape.state_size * size % 16 == 0;
  return costs.library.beside_others *
         (of.launch + product * (vector_rows ? 1 : of.unaligned) + rows * state_size * of.element);
}

}  // namespace

std::span<const SequenceGradientCandidate> sequence_gradient_candidates() {
  return kCandidates;
}

bool supports(const SequenceGradientCandidate& candidate,
              const SequenceGradientShape& shape,
              const DeviceFacts& device) {
  if (candidate.group == Group::kLibrary) {
    return true;
  }
  // Blocks are counted in 32 bits.
  if (!shape.arithmetic || !device.tiles ||
      ceil_div(shape.rows, 32) * ceil_div(shape.state_size, 32) > (1 << 27)) {
    return false;
  }
  // Those of mma.sync are the LLTM's. TMA counts rows in 32 bits.
  return candidate.group == Group::kTiles
             ? shape.gates == 3 * shape.state_size
             : device.wgmma && (shape.state_size % 4 == 0 || candidate.any_state_size) &&
                   candidate.float32 == (shape.arithmetic == Arithmetic::kFloat32) &&
                   shape.rows <= INT32_MAX / std::max<int64_t>(shape.steps, 1) - 128;
}

Estimate estimate(const SequenceGradientCandidate& candidate,
                  const SequenceGradientShape& shape,
                  const DeviceFacts& device,
                  int ranks) {
  return candidate.group == Group::kLibrary
             ? Estimate{library_time(shape, device.costs->sequence_backward), ranks == 0 ? 1 : 0}
             : tiles_time(candidate, shape, device, ranks);
}

SequenceGradientChoice choose_sequence_gradients(const SequenceGradientShape& shape,
                                                 const DeviceFacts& device,
                                                 const Selection& selection) {
  return choose(sequence_gradient_candidates(), shape, device, selection);
}

}  // namespace lltm::cuda
