#include "model.h"

#include "choice.h"
#include "tile/shapes.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lltm::cuda {
namespace {

// Microseconds that a cluster's exchange adds, by wgmma and by mma.sync. Bytes per microsecond: of
// what is read once, of what is written, and of the chunks of all blocks.
constexpr double kExchange = 0.0699, kExchangeARank = 0.0337;
constexpr double kTilesExchange = 0.159, kTilesExchangeARank = 0.0642;
constexpr double kReadRate = 4.07e6, kWriteRate = 3.05e6, kChunkRate = 9.83e6;
// For weights that do not fit the caches: what a block can read in a microsecond if rows start at
// cache lines, and how many times as much is read if they do not.
constexpr double kBlockReadRate = 37.2e3, kReadAcrossLines = 1.2;
// Factors for boxes whose rows span two cache lines: on the bytes of weights and of states, and on
// the time of a chunk.
constexpr double kWeightsAcrossLines = 1.0, kStatesAcrossLines = 1.39, kChunkAcrossLines = 1.2;
// A launch that packs, and the bytes that it reads and writes per microsecond.
constexpr double kPack = 1.74, kPackRate = 4.14e6;
// The additional time of a block that writes 64 rows that start anywhere, and the same per hidden
// column: from the sums of 16 bits and TF32, and from those of three TF32 products.
constexpr double kUnaligned = 0.366, kUnalignedAColumn = 0.028;
constexpr double kUnalignedFloat32 = 2.34, kUnalignedFloat32AColumn = 0.0199;
constexpr double kCacheBytes = 31.1e6;

template <typename Tile>
constexpr int tile_of(Tile tile) {
  return static_cast<int>(tile);
}

// The chunk times of mma.sync are those of 16 bits; tile_arithmetic() scales them for other
// arithmetic, and for rows that start anywhere, whose elements are copied one by one.
constexpr ForwardCandidate kCandidates[] = {
    // clang-format off
    // name, group, tile, {rows, hidden, row tiles per cluster, most ranks}, {blocks per multiprocessor, chunk, block}, float32, {step: chunk, input chunk, block, alone, by two}
    {"forward_few_rows",                  Group::kFewRows,  0,                                         {8, 1, 1, 1}, {1, 0, 2.06}, true},
    {"forward_wgmma_64x8",                Group::kHopper,   tile_of(WgmmaTile::k64x8),                 {64, 8, 1, 8}, {1, 0.128, 1.53}, false, {0.146, 0.0225, 1.72, -0.718, true}},
    {"forward_wgmma_64x24",               Group::kHopper,   tile_of(WgmmaTile::k64x24),                {64, 24, 1, 8}, {1, 0.161, 1.91}, false, {0.168, 0.116, 2.12, 0.125}},
    {"forward_wgmma_64x40",               Group::kHopper,   tile_of(WgmmaTile::k64x40),                {64, 40, 1, 8}, {1, 0.272, 1.88}, false, {0.172, 0.14, 2.5, 0.146}},
    {"forward_wgmma_64x40_pairs",         Group::kHopper,   tile_of(WgmmaTile::k64x40InPairs),         {64, 40, 2, 4}, {1, 0.193, 1.97}, false, {0.176, 0.02, 2.02, 0.24}},
    {"forward_wgmma_128x32",              Group::kHopper,   tile_of(WgmmaTile::k128x32),               {128, 32, 1, 8}, {1, 0.158, 2.3}, false, {0.226, 0.206, 2.82, 0.153}},
    {"forward_wgmma_128x32_pairs",        Group::kHopper,   tile_of(WgmmaTile::k128x32InPairs),        {128, 32, 2, 1}, {1, 0.217, 2.96}, false, {0.254, 0.02, 2.48, -0.0444}},
    {"forward_wgmma_128x32_twice",        Group::kHopper,   tile_of(WgmmaTile::k128x32Twice),          {128, 32, 1, 1}, {2, 0.45, 1.7}, false, {0.306, 0.0361, 3.13, -0.799}},
    {"forward_wgmma_128x64_pairs",        Group::kHopper,   tile_of(WgmmaTile::k128x64InPairs),        {128, 64, 2, 1}, {1, 0.304, 4.78}, false, {0.407, 0.0201, 3.75, -0.0737}},
    {"forward_wgmma_float32_64x8",        Group::kHopper,   tile_of(WgmmaTile::k64x8),                 {64, 8, 1, 8}, {1, 0.344, 1.11}, true, {0.318, 0.14, 2.07, 0.4}},
    {"forward_wgmma_float32_64x32",       Group::kHopper,   tile_of(WgmmaTile::k64x32),                {64, 32, 1, 8}, {1, 0.594, 1.47}, true, {0.557, 0.394, 2.63, 0.334}},
    {"forward_wgmma_float32_128x32",      Group::kHopper,   tile_of(WgmmaTile::k128x32),               {128, 32, 1, 8}, {1, 0.85, 1.39}, true, {0.786, 0.579, 3.57, 0.298}},
    {"forward_tiles_16x8",                Group::kTiles,    tile_of(ForwardTile::k16x8),               {16, 8, 1, 8}, {2.2, 0.37, 1.69}, false},
    {"forward_tiles_64x8",                Group::kTiles,    tile_of(ForwardTile::k64x8),               {64, 8, 1, 8}, {1, 0.455, 1.78}, false},
    {"forward_tiles_64x32",               Group::kTiles,    tile_of(ForwardTile::k64x32),              {64, 32, 1, 8}, {1, 0.738, 2.54}, false},
    {"forward_tiles_128x32",              Group::kTiles,    tile_of(ForwardTile::k128x32),             {128, 32, 1, 8}, {1, 1.07, 3.46}, false},
    {"forward_library",                   Group::kLibrary,  0,                                         {1, 1, 1, 1}, {1, 0, 0}, false},
    // clang-format on
};

double element_bytes(const ForwardShape& shape) {
  return shape.arithmetic ? element_size(*shape.arithmetic) : 8;
}

// The bytes of gates, new_h and new_cell, which are written, and of old_cell, which is read.
double state_traffic(const ForwardShape& shape) {
  return static_cast<double>(shape.batch * shape.state_size) * 6 * element_bytes(shape);
}

double multiplications(const ForwardShape& shape, int64_t tile_rows) {
  return static_cast<double>(ceil_div(shape.batch, tile_rows) * tile_rows) *
         static_cast<double>(shape.gates()) * static_cast<double>(shape.width());
}

double weights_bytes(const ForwardShape& shape) {
  return static_cast<double>(shape.gates() * shape.width()) * element_bytes(shape);
}

// The additional time of a block that writes rows that start anywhere.
double unaligned_end(const ForwardCandidate& of, const ForwardShape& shape) {
  if (shape.state_size * element_size(*shape.arithmetic) % 16 == 0) {
    return 0;
  }
  const auto rows = static_cast<double>(std::min<int64_t>(of.shape.rows, shape.batch));
  return (of.float32 ? kUnalignedFloat32 + kUnalignedFloat32AColumn * of.shape.hidden
                     : kUnaligned + kUnalignedAColumn * of.shape.hidden) *
         rows / 64;
}

// A copy of the operands into one matrix, one product by cuBLAS and one pointwise kernel.
double library_time(const ForwardShape& shape) {
  double launch = 6;
  double rate = 3.3e6;   // floating-point operations per microsecond; this one for float64
  double unaligned = 1;  // factor for rows that start anywhere
  if (shape.arithmetic) {
    switch (*shape.arithmetic) {
      case Arithmetic::kFloat32:
        rate = 42.9e6 * std::clamp(static_cast<double>(shape.batch) / 300, 0.2, 1.0);
        break;
      case Arithmetic::kTf32:
        launch = 6.76;
        rate = 313e6 * std::clamp(static_cast<double>(shape.batch) / 180, 0.2, 1.0);
        unaligned = 4;
        break;
      default:
        launch = 4.84;
        rate = 671e6 * std::clamp(static_cast<double>(shape.batch) / 80, 0.2, 1.0);
        unaligned = 6;
    }
  }
  const double gates = static_cast<double>(shape.batch * shape.gates()) * element_bytes(shape);
  const double traffic = 4 * gates + gates;
  const double columns = static_cast<double>(shape.batch * shape.width()) * element_bytes(shape);
  // With few rows the library spends its time reading weights, in part with too few blocks. Rows
  // that start anywhere rule out cuBLAS's fastest kernels, except for one or two rows, which are
  // multiplied as vectors.
  const double arithmetic = 2 * multiplications(shape, 1) / rate;
  const double reading = weights_bytes(shape) / 3.85e6;
  const double products = shape.vector_rows ? std::max(arithmetic, weights_bytes(shape) / 4.46e6)
                                            : 2 + std::max(unaligned * arithmetic,
                                                           (shape.batch <= 2 ? 1 : 3) * reading);
  if (shape.overlaps) {
    // The products of h and of input are written and read in float32, and no step overlaps another.
    return 1.2 * (5 + products + static_cast<double>(shape.batch * shape.gates()) * 8.8e-6);
  }
  return launch + 2 * columns / 2.85e6 + products +
         traffic / (traffic < kCacheBytes ? 5.03e6 : 4.54e6);
}

double few_rows_time(const ForwardShape& shape) {
  const auto more_rows = static_cast<double>(shape.batch - 1);
  if (shape.overlaps) {
    return 2.3 + weights_bytes(shape) * std::sqrt(shape.batch) / 11.1e6 + 0.065 * more_rows;
  }
  const double a_row = shape.vector_rows ? 0.0724 : 0.183;
  // In TF32 a few tenths less than measured: where the forward is as fast either way, the backward
  // of few rows takes longer after a hopper kernel. (1,192,568), backward included, takes 10.1 then
  // and 8.3 otherwise.
  const double launch = shape.arithmetic == Arithmetic::kTf32 ? 2.2 : 2.49;
  return launch + weights_bytes(shape) / 4.43e6 + a_row * more_rows;
}

// The time of a chunk of 128 bytes by mma.sync, relative to 16 bits in aligned rows.
double tile_arithmetic(const ForwardCandidate& of, const ForwardShape& shape) {
  switch (*shape.arithmetic) {
    case Arithmetic::kFloat32:
      return (of.shape.hidden == 8  ? 1.12
              : of.shape.rows == 64 ? 1.69
                                    : 1.89) *
             (shape.vector_rows ? 1 : 2.08);
    case Arithmetic::kTf32:
      return shape.vector_rows ? 1.41 : 1.91;
    default:
      return shape.vector_rows ? 1 : 5;
  }
}

// The mean factor over the chunks of old_h and input, if those whose rows span cache lines cost
// `factor` times as much.
double across_lines(const ForwardShape& shape, double factor) {
  return 1 + (factor - 1) * shape.states_across_lines;
}

// The bytes of a chunk of K that a block copies: no rows beyond a small batch, and only the block's
// share of what a cluster shares.
double chunk_bytes(const ForwardCandidate& of, const ForwardShape& shape) {
  const int64_t rows = std::min<int64_t>(ceil_div(shape.batch, 8) * 8, of.shape.rows);
  return 128 * (static_cast<double>(rows) * across_lines(shape, kStatesAcrossLines) +
                3.0 * of.shape.hidden / of.shape.row_tiles *
                    (shape.weights_in_lines ? 1 : kWeightsAcrossLines));
}

int64_t chunk_columns(const ForwardShape& shape) {
  return 128 / element_size(*shape.arithmetic);
}

// Row tiles come in whole clusters.
int64_t count_tiles(const ForwardCandidate& of, const ForwardShape& shape) {
  return ceil_div(ceil_div(shape.batch, of.shape.rows), of.shape.row_tiles) * of.shape.row_tiles *
         ceil_div(shape.state_size, of.shape.hidden);
}

// With fewer than three chunks per rank by wgmma, the exchange takes longer than the split saves:
// (16,32,128) in 16 bits takes 2.0 with one rank and 2.2 with two.
bool has_chunks_for(int ranks, int64_t chunks, const ForwardCandidate& of) {
  const int least = of.group == Group::kHopper && !of.float32 ? 3 : 1;
  return ranks == 1 || ranks * least <= chunks;
}

Estimate tiles_time(const ForwardCandidate& of,
                    const ForwardShape& shape,
                    const DeviceFacts& device) {
  const bool hopper = of.group == Group::kHopper;
  const int64_t chunk_k = chunk_columns(shape);
  const int64_t chunks = std::max<int64_t>(
      ceil_div(shape.state_size, chunk_k) +
          ceil_div(shape.input_features + (hopper ? shape.input_offset : 0), chunk_k),
      1);
  const int64_t tiles = count_tiles(of, shape);
  const double arithmetic = hopper ? 1 : tile_arithmetic(of, shape);
  Estimate best{0, 0};
  for (int ranks = 1; ranks <= of.shape.max_ranks; ++ranks) {
    const double resident = of.cost.blocks_a_multiprocessor *
                            device.resident_in_clusters_of(ranks * of.shape.row_tiles);
    if (!has_chunks_for(ranks, chunks, of) || resident < ranks * of.shape.row_tiles) {
      continue;
    }
    const double waves = std::ceil(static_cast<double>(tiles * ranks) / resident);
    const auto chunks_a_rank = static_cast<double>(ceil_div(chunks, ranks));
    double chunk = of.cost.chunk * arithmetic;
    const double active = std::min(static_cast<double>(tiles * ranks), resident);
    if (hopper && !of.float32) {
      chunk = std::max(chunk * across_lines(shape, kChunkAcrossLines),
                       active * chunk_bytes(of, shape) / kChunkRate);
    }
    double exchange = 0;
    if (of.float32) {
      exchange = ranks == 1 ? 0 : of.shape.hidden == 8 ? 1.13 : of.shape.rows == 64 ? 1.7 : 3.25;
    } else if (ranks > 1) {
      exchange = hopper ? kExchange + kExchangeARank * ranks
                        : kTilesExchange + kTilesExchangeARank * ranks;
    }
    double read_rate = kReadRate;
    if (weights_bytes(shape) > kCacheBytes) {
      read_rate = std::min(read_rate, active * kBlockReadRate) /
                  (shape.weights_in_lines ? 1 : kReadAcrossLines);
    }
    const double work = std::max(waves * chunks_a_rank * chunk, weights_bytes(shape) / read_rate);
    const double end = of.cost.block + exchange + (hopper ? unaligned_end(of, shape) / ranks : 0);
    const double us = work + waves * end + state_traffic(shape) / kWriteRate;
    if (best.ranks == 0 || us < best.us) {
      best = {us, ranks};
    }
  }
  if (hopper && shape.pack_bytes > 0) {
    best.us += packing_time(static_cast<double>(shape.pack_bytes));
  }
  return best;
}

// Constants of steps by wgmma besides a candidate's.
struct StepCosts {
  double exchange, exchange_a_rank;          // within a cluster
  double chunk_rate, write_rate, read_rate;  // bytes per microsecond
  double early_start;                        // of input that is multiplied ahead
  double unaligned, unaligned_a_column;      // of 64 rows that start anywhere
  int most_ahead;                            // steps
  // What more waves than one add, by the share of a wave that is used and in all.
  struct {
    double used, whole;
  } waves, waves_of_clusters;
};
constexpr StepCosts kStepCosts{.exchange = 0.0716,
                               .exchange_a_rank = 0.0458,
                               .chunk_rate = 8.44e6,
                               .write_rate = 1.59e6,
                               .read_rate = 7.96e6,
                               .early_start = 1.85,
                               .unaligned = 1.17,
                               .unaligned_a_column = 0.0217,
                               .most_ahead = 3,
                               .waves = {0.48, 0.236},
                               .waves_of_clusters = {0.386, 0.493}};
constexpr StepCosts kFloat32StepCosts{.exchange = 0,
                                      .exchange_a_rank = 0.0227,
                                      .chunk_rate = std::numeric_limits<double>::infinity(),
                                      .write_rate = 2.06e6,
                                      .read_rate = 5.43e6,
                                      .early_start = 2.17,
                                      .unaligned = 1.14,
                                      .unaligned_a_column = 0.0508,
                                      .most_ahead = 3,
                                      .waves = {0.254, 0.404},
                                      .waves_of_clusters = {0.431, 0.711}};

// A step of a sequence by wgmma with `ranks` ranks, whose blocks fit `resident` at once. Its kernel
// starts as soon as there is room for its blocks, at once if several steps fit the GPU together. It
// then multiplies input before the previous step ends, as many steps ahead as fit, and the time of
// a step is what remains: the chunks of h and the end of a block. If not, it takes as long as a
// cell that need not be launched, and the blocks of the last wave run beside the first ones of the
// next step.
double step_time_with(int ranks,
                      int resident,
                      int64_t steps_at_once,
                      const ForwardCandidate& of,
                      const ForwardShape& shape) {
  const StepCosts& costs = of.float32 ? kFloat32StepCosts : kStepCosts;
  const int64_t input_chunks = ceil_div(shape.input_features, chunk_columns(shape));
  const int64_t chunks = input_chunks + ceil_div(shape.state_size, chunk_columns(shape));
  const auto blocks = static_cast<double>(count_tiles(of, shape) * ranks);
  const auto early = static_cast<double>(input_chunks / ranks);
  const double late = static_cast<double>(ceil_div(chunks, ranks)) - early;
  const double least =
      std::min<double>(blocks, resident) * chunk_bytes(of, shape) / costs.chunk_rate;
  const double early_time = early * std::max(of.step.input_chunk, least);
  const double late_time = late * std::max(of.step.chunk, least);
  const bool unaligned = shape.state_size * element_size(*shape.arithmetic) % 16 != 0;
  const auto rows = static_cast<double>(std::min<int64_t>(of.shape.rows, shape.batch));
  const double write_rows_anywhere =
      unaligned ? (costs.unaligned + costs.unaligned_a_column * of.shape.hidden) * rows / 64 : 0;
  const double end = of.step.block +
                     (ranks > 1 ? costs.exchange + costs.exchange_a_rank * ranks : 0) +
                     write_rows_anywhere / ranks;
  // h is written, and the cell state, in float, is read and written.
  const double traffic = static_cast<double>(shape.batch * shape.state_size) *
                         (8 + element_bytes(shape)) / costs.write_rate;
  if (steps_at_once > 1) {
    const auto ahead = static_cast<double>(std::min<int64_t>(steps_at_once - 1, costs.most_ahead));
    return std::max(late_time + end, early_time / ahead + costs.early_start) + traffic;
  }
  const double used = blocks / resident;
  const auto& waves = ranks * of.shape.row_tiles > 1 ? costs.waves_of_clusters : costs.waves;
  const double more_waves = waves.used * (used - 1) + waves.whole * (std::ceil(used) - 1);
  const double work = std::max(early_time + late_time, weights_bytes(shape) / costs.read_rate);
  return (end + of.step.alone + work) * (1 + std::max(more_waves, 0.0)) + traffic;
}

Estimate step_time(const ForwardCandidate& of,
                   const ForwardShape& shape,
                   const DeviceFacts& device) {
  const int64_t chunks = ceil_div(shape.input_features, chunk_columns(shape)) +
                         ceil_div(shape.state_size, chunk_columns(shape));
  Estimate best{0, 0};
  for (int ranks = 1; ranks <= of.shape.max_ranks; ++ranks) {
    const int cluster = ranks * of.shape.row_tiles;
    const int by_one = device.resident_in_clusters_of(cluster);
    const int by_two = device.resident_by_two_in_clusters_of(cluster);
    const int resident = of.cost.blocks_a_multiprocessor > 1 ? by_two : by_one;
    if (!has_chunks_for(ranks, chunks, of) || resident < cluster) {
      continue;
    }
    // Blocks that share weights wait for each other. Two blocks on a multiprocessor fill it.
    const bool runs_ahead = of.shape.row_tiles == 1 && of.cost.blocks_a_multiprocessor == 1;
    const int64_t steps_at_once =
        runs_ahead ? (of.step.by_two ? by_two : resident) / (count_tiles(of, shape) * ranks) : 1;
    const double us = step_time_with(ranks, resident, steps_at_once, of, shape);
    if (best.ranks == 0 || us < best.us) {
      best = {us, ranks};
    }
  }
  return best;
}

// Whether tiles can be counted in 32 bits. Only a one-column state of 2^30 rows or more could
// exceed that and still fit a GPU's memory.
bool countable(const ForwardShape& shape) {
  return ceil_div(shape.batch, 16) * ceil_div(shape.state_size, 8) < (int64_t{1} << 28);
}

// Three TF32 products by wgmma are as accurate as SGEMM, except for few rows and short sums. There
// SGEMM is more accurate, and mma.sync nearly so: the mean errors of wgmma, SGEMM and mma.sync at
// (16,32,128) are 2.26e-8, 1.90e-8 and 2.02e-8.
bool is_exact(const ForwardCandidate& candidate, const ForwardShape& shape) {
  return candidate.group != Group::kHopper || !candidate.float32 ||
         (multiplications(shape, 64) >= 1e7 && shape.batch > 16);
}

}  // namespace

int64_t line_shift(int64_t first, int64_t columns, int64_t columns_a_line) {
  const int64_t shift = first % columns_a_line, boxes = ceil_div(columns, columns_a_line);
  return boxes >= 4 || ceil_div(shift + columns, columns_a_line) == boxes ? shift : 0;
}

double packing_time(double bytes) {
  return kPack + 2 * bytes / kPackRate;
}

std::string_view name_of(Group group) {
  switch (group) {
    case Group::kFewRows:
      return "few_rows";
    case Group::kHopper:
      return "hopper";
    case Group::kTiles:
      return "tiles";
    case Group::kLibrary:
      break;
  }
  return "library";
}

std::span<const ForwardCandidate> forward_candidates() {
  return kCandidates;
}

bool supports(const ForwardCandidate& candidate,
              const ForwardShape& shape,
              const DeviceFacts& device) {
  if (candidate.group == Group::kLibrary) {
    return true;
  }
  if (!shape.arithmetic || !device.tiles || !countable(shape)) {
    return false;
  }
  switch (candidate.group) {
    case Group::kFewRows:
      // Only the cell's kernel supports rows that start anywhere.
      return is_float(*shape.arithmetic) && shape.batch <= kFewRows &&
             shape.width() < (int64_t{1} << 30) &&
             (shape.may_pack ||
              (shape.vector_rows && shape.state_size % 4 == 0 && shape.input_features % 4 == 0));
    case Group::kHopper:
      return device.wgmma && candidate.float32 == (*shape.arithmetic == Arithmetic::kFloat32) &&
             shape.batch < (int64_t{1} << 31) && (shape.may_pack || shape.pack_bytes == 0) &&
             device.resident_in_clusters_of(candidate.shape.row_tiles) > 0;
    default:
      // The largest tiles need the shared memory of sm_80 or sm_90.
      return candidate.shape.rows < 128 || device.shared_bytes_a_block >= 160 * 1024;
  }
}

Estimate estimate(const ForwardCandidate& candidate,
                  const ForwardShape& shape,
                  const DeviceFacts& device) {
  switch (candidate.group) {
    case Group::kFewRows:
      return {few_rows_time(shape), 1};
    case Group::kLibrary:
      return {library_time(shape), 1};
    case Group::kHopper:
      if (shape.overlaps) {
        return step_time(candidate, shape, device);
      }
      [[fallthrough]];
    default:
      return tiles_time(candidate, shape, device);
  }
}

ForwardChoice choose_forward(const ForwardShape& shape,
                             const DeviceFacts& device,
                             std::optional<Group> group,
                             std::string_view name) {
  return choose(
      forward_candidates(),
      group,
      name,
      [&](const ForwardCandidate& of) { return is_exact(of, shape); },
      [&](const ForwardCandidate& of) -> std::optional<Estimate> {
        if (!supports(of, shape, device)) {
          return std::nullopt;
        }
        const Estimate time = estimate(of, shape, device);
        return time.ranks > 0 ? std::optional(time) : std::nullopt;
      });
}

}  // namespace lltm::cuda
