// The candidates for a step of a sequence's backward: what each supports, and its estimated time.
// One is one launch, by mma.sync, or by wgmma with W_h transposed once for all steps; or a product
// by ATen and a pointwise kernel.
#include "choice.h"
#include "times.h"

#include <algorithm>

namespace lltm::cuda {
namespace {

Time tiles_time(const Candidate& of, const Shape& shape, const DeviceFacts& device, int ranks) {
  const SequenceBackwardCosts& costs = device.costs->sequence_backward;
  const auto tile = of.times_as<StepBackwardTimes>();
  const bool hopper = of.group == Group::kHopper;
  // By wgmma only in 16 bits.
  const bool two_fit = tile.shared > 0 && (!hopper || !shape.in_floats());
  const int x_alone = saved_of(shape.cell) - gates_of(shape.cell);
  const int64_t chunks =
      shape.chunks(shape.gates()) -
      (hopper ? chunks_of_zeros(x_alone, shape.state_size, chunk_columns(*shape.arithmetic)) : 0);
  const int64_t blocks =
      ceil_div(shape.batch, of.tile.rows) * ceil_div(shape.state_size, of.tile.columns) * ranks;
  const int resident = device.resident_in_clusters_of(ranks, two_fit);
  // By wgmma, more blocks than fill the GPU were not measured.
  if (ranks > chunks || resident == 0 || (hopper && ranks > 1 && blocks > device.multiprocessors)) {
    return std::nullopt;
  }
  const auto rows = static_cast<double>(std::min<int64_t>(shape.batch, of.tile.rows));
  const auto active = static_cast<double>(std::min<int64_t>(blocks, resident));
  const bool shares = two_fit && blocks > device.resident_in_clusters_of(ranks);
  const double chunk_rate = hopper ? device.costs->step.chunk_rate : costs.chunk_rate;
  const double weights = shape.weights_bytes();
  const double finish = tile.finish * rows / of.tile.rows / ranks + (ranks > 1 ? tile.exchange : 0);
  TiledTime tiled{.waves = rounds(blocks, resident),
                  .chunks = rounds(chunks, ranks),
                  .chunk = std::max(tile.chunk.of(*shape.arithmetic) * (shares ? tile.shared : 1),
                                    active * 128 * (rows + of.tile.columns) / chunk_rate),
                  .rest = costs.launch + finish};
  if (!hopper) {
    return Estimate{tiled.time(device)};
  }
  // The weights come from memory in every step if L2 has no room for them. They are transposed
  // once.
  tiled.least = weights > costs.cache_bytes ? weights / costs.memory_rate + costs.beside_memory : 0;
  return Estimate{tiled.time(device) + device.costs->packing.time(weights) /
                                           static_cast<double>(std::max<int64_t>(shape.steps, 1))};
}

/// A product by ATen and a pointwise kernel.
Time time_by_library(const Candidate&, const Shape& shape, const DeviceFacts& device, int) {
  if (!shape.arithmetic) {
    return Estimate{};  // There is nothing else for float64.
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
  return Estimate{costs.library.beside_others *
                  (product.time(device) + rows * state_size * of.element)};
}

// TMA counts rows in 32 bits.
bool wgmma_supports(const Candidate& of, const Shape& shape, const DeviceFacts&) {
  return (shape.state_size % 4 == 0 || of.any_state_size) &&
         shape.batch <= INT32_MAX / std::max<int64_t>(shape.steps, 1) - 128;
}

constexpr Candidate tiles(std::string_view name, TileShape tile, StepBackwardTimes times) {
  return {.name = name,
          .group = Group::kTiles,
          .estimate = tiles_time,
          .tile = tile,
          .most_ranks = kLargestCluster,
          .times = std::bit_cast<decltype(Candidate::times)>(times)};
}

constexpr Candidate wgmma(std::string_view name,
                          TileShape tile,
                          StepBackwardTimes times,
                          bool float32,
                          bool any_state_size) {
  Candidate of = tiles(name, tile, times);
  of.group = Group::kHopper;
  of.supports = wgmma_supports;
  of.float32 = float32;
  of.any_state_size = any_state_size;
  return of;
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
    {.name = "sequence_backward_library", .group = Group::kLibrary, .estimate = time_by_library},
};
// clang-format on

}  // namespace

std::span<const Candidate> step_backward_candidates() {
  return kCandidates;
}

}  // namespace lltm::cuda
