// The candidates for a step of a sequence's backward: what each supports, and its estimated time.
// One is one launch, by mma.sync, or by wgmma with W_h transposed once for all steps; or a product
// by ATen and a pointwise kernel.
#include "choice.h"
#include "times.h"

#include <algorithm>

namespace lltm::cuda {
namespace {

using Row = Candidate;  // of the table below

/// The estimate for tiles with the best number of ranks, or with the wanted one.
Estimate tiles_time(const Row& of, const Shape& shape, const DeviceFacts& device, int wanted) {
  const SequenceBackwardCosts& costs = device.costs->sequence_backward;
  const auto tile = of.times_as<StepBackwardTimes>();
  const int64_t tiles =
      ceil_div(shape.batch, of.tile.rows) * ceil_div(shape.state_size, of.tile.columns);
  const bool hopper = of.group == Group::kHopper;
  const int x_alone = saved_of(shape.cell) - gates_of(shape.cell);
  const int64_t chunks =
      shape.chunks(shape.gates()) -
      (hopper ? chunks_of_zeros(x_alone, shape.state_size, chunk_columns(*shape.arithmetic)) : 0);
  const auto rows = static_cast<double>(std::min<int64_t>(shape.batch, of.tile.rows));
  const double chunk_bytes = 128 * (rows + of.tile.columns);
  // By wgmma only in 16 bits.
  const bool two_fit = tile.shared > 0 && (!hopper || !shape.in_floats());
  const double chunk_rate = hopper ? device.costs->step.chunk_rate : costs.chunk_rate;
  // A step's share of transposing the weights, which come from memory in every step if L2 has no
  // room for them.
  const double weights = shape.weights_bytes();
  const double transposing = hopper ? device.costs->packing.time(weights) /
                                          static_cast<double>(std::max<int64_t>(shape.steps, 1))
                                    : 0;
  const double least =
      hopper && weights > costs.cache_bytes ? weights / costs.memory_rate + costs.beside_memory : 0;
  const int most = static_cast<int>(std::min<int64_t>(kLargestCluster, chunks));
  return best_ranks(most, wanted, [&](int ranks) -> std::optional<double> {
    const int64_t blocks = tiles * ranks;
    const int alone = device.resident_in_clusters_of(ranks);
    const int resident = device.resident_in_clusters_of(ranks, two_fit);
    // By wgmma, more blocks than fill the GPU were not measured.
    if (resident == 0 || (hopper && wanted == 0 && ranks > 1 && blocks > device.multiprocessors)) {
      return std::nullopt;
    }
    const auto active = static_cast<double>(std::min<int64_t>(blocks, resident));
    const bool shares = two_fit && blocks > alone;
    const double chunk = std::max(tile.chunk.of(*shape.arithmetic) * (shares ? tile.shared : 1),
                                  active * chunk_bytes / chunk_rate);
    const double finish =
        tile.finish * rows / of.tile.rows / ranks + (ranks > 1 ? tile.exchange : 0);
    const TiledTime tiled{.waves = rounds(blocks, resident),
                          .chunks = rounds(chunks, ranks),
                          .chunk = chunk,
                          .rest = costs.launch + finish,
                          .least = least};
    return tiled.time(device) + transposing;
  });
}

/// A product by ATen and a pointwise kernel.
Estimate time_by_library(const Row&, const Shape& shape, const DeviceFacts& device, int) {
  if (!shape.arithmetic) {
    return {};  // There is nothing else for float64.
  }
  const SequenceBackwardCosts& costs = device.costs->sequence_backward;
  const SequenceBackwardCosts::Library& of = costs.library.in.of(*shape.arithmetic);
  const auto rows = static_cast<double>(shape.batch);
  const auto state_size = static_cast<double>(shape.state_size);
  const double weights = static_cast<double>(shape.gates()) * state_size;
  const int size = shape.element_bytes();
  const double slower = shape.state_size * size % 16 == 0 ? 1 : of.unaligned;
  const Product product{of.launch,
                        slower * 2 * rows * weights,
                        of.rate * std::clamp(rows / costs.library.rows, 0.1, 1.0),
                        slower * weights * size,
                        of.read_rate};
  return {costs.library.beside_others * (product.time(device) + rows * state_size * of.element)};
}

// Blocks are counted in 32 bits.
bool ours_run(const Shape& shape, const DeviceFacts& device) {
  return shape.arithmetic && device.tiles &&
         ceil_div(shape.batch, 32) * ceil_div(shape.state_size, 32) <= (1 << 27);
}

// TMA counts rows in 32 bits.
bool wgmma_supports(const Row& of, const Shape& shape, const DeviceFacts& device) {
  return ours_run(shape, device) && device.wgmma &&
         (shape.state_size % 4 == 0 || of.any_state_size) &&
         of.float32 == (shape.arithmetic == Arithmetic::kFloat32) &&
         shape.batch <= INT32_MAX / std::max<int64_t>(shape.steps, 1) - 128;
}

// The LLTM.
bool tiles_support(const Row&, const Shape& shape, const DeviceFacts& device) {
  return ours_run(shape, device) && shape.gates() == 3 * shape.state_size;
}

constexpr Candidate wgmma(std::string_view name,
                          TileShape tile,
                          StepBackwardTimes times,
                          bool float32,
                          bool any_state_size) {
  return {.name = name,
          .group = Group::kHopper,
          .supports = wgmma_supports,
          .estimate = tiles_time,
          .tile = tile,
          .float32 = float32,
          .any_state_size = any_state_size,
          .times = std::bit_cast<decltype(Candidate::times)>(times)};
}

constexpr Candidate tiles(std::string_view name, TileShape tile, StepBackwardTimes times) {
  return {.name = name,
          .group = Group::kTiles,
          .supports = tiles_support,
          .estimate = tiles_time,
          .tile = tile,
          .times = std::bit_cast<decltype(Candidate::times)>(times)};
}

// Times are microseconds, measured as those in costs.h; whether in float32, and for any state_size.
// clang-format off
constexpr Candidate kCandidates[] = {
    wgmma("sequence_backward_wgmma_64x32", {64, 32},
        {.chunk = {.float32 = 0, .tf32 = 0.161, .half = 0.207}, .finish = 3.66, .exchange = 0, .shared = 1.16}, false, false),
    wgmma("sequence_backward_wgmma_64x64", {64, 64},
        {.chunk = {.float32 = 0, .tf32 = 0.214, .half = 0.3}, .finish = 7.5, .exchange = 0.098, .shared = 1.47}, false, true),
    wgmma("sequence_backward_wgmma_128x64", {128, 64},
        {.chunk = {.float32 = 0, .tf32 = 0.259, .half = 0.314}, .finish = 8.56, .exchange = 0.629, .shared = 0}, false, false),
    wgmma("sequence_backward_wgmma_float32_64x96", {64, 96},
        {.chunk = {.float32 = 0.488, .tf32 = 0, .half = 0}, .finish = 10.2, .exchange = 2.11, .shared = 0}, true, true),
    wgmma("sequence_backward_wgmma_float32_128x96", {128, 96},
        {.chunk = {.float32 = 0.771, .tf32 = 0, .half = 0}, .finish = 12.7, .exchange = 2.61, .shared = 0}, true, false),
    tiles("sequence_backward_tiles_32x32", {32, 32},
        {.chunk = {.float32 = 0.467, .tf32 = 0.333, .half = 0.302}, .finish = 2.57, .exchange = 0.531, .shared = 1.5}),
    tiles("sequence_backward_tiles_64x64", {64, 64},
        {.chunk = {.float32 = 1.07, .tf32 = 0.578, .half = 0.536}, .finish = 8.23, .exchange = 0.947, .shared = 1.71}),
    {"sequence_backward_library", Group::kLibrary, supports_everything, time_by_library},
};
// clang-format on

}  // namespace

std::span<const Candidate> step_backward_candidates() {
  return kCandidates;
}

}  // namespace lltm::cuda
