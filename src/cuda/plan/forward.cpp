#include "forward.h"

#include "../tile/shapes.h"
#include "times.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace lltm::cuda {
namespace {

// Whether it is a step that reads z_x, or without input its biases in place of it.
bool has_z_x(const Shape& shape) {
  return shape.is_step() && shape.input_features == 0;
}

double multiplications(const Shape& shape, int64_t tile_rows) {
  return static_cast<double>(ceil_div(shape.batch, tile_rows) * tile_rows) *
         static_cast<double>(shape.gates()) * static_cast<double>(shape.width());
}

// A copy of the operands into one matrix, one product by cuBLAS and one pointwise kernel.
Time time_by_library(const Candidate&, const Shape& shape, const DeviceFacts& device, int) {
  if (shape.batch > INT32_MAX) {
    return Estimate{std::numeric_limits<double>::infinity()};  // which BLAS counts in 32 bits
  }
  const auto& costs = device.costs->forward.library;
  const auto& step = device.costs->step.library;
  const ForwardCosts::Library& of = costs.in.of(*shape.arithmetic);
  const auto batch = static_cast<double>(shape.batch);
  const double gates = batch * static_cast<double>(shape.gates());
  // With few rows the library spends its time reading weights, in part with too few blocks.
  Product product{.launch = shape.is_step() ? step.launch : of.launch,
                  .operations = 2 * multiplications(shape, 1),
                  .rate = of.rate * std::clamp(batch / of.rows, 0.2, 1.0),
                  .bytes = shape.weights_bytes(),
                  .read_rate = costs.weights_rate};
  if (!shape.vector_rows) {
    // Rows that start anywhere rule out cuBLAS's fastest kernels, except for one or two rows, which
    // are multiplied as vectors.
    product.launch += costs.unaligned_launch;
    product.operations *= of.unaligned;
    product.bytes *= shape.batch <= 2 ? 1 : costs.unaligned_reads;
    product.read_rate = costs.unaligned_weights_rate;
  }
  const double us = product.time(device);
  if (shape.is_step()) {
    return Estimate{step.alone * (us + gates * step.element)};
  }
  return Estimate{us + (shape.cell == CellType::kLltm ? 0 : costs.lstm_launch) +
                  shape.element_bytes() *
                      (2 * batch * static_cast<double>(shape.width()) / costs.copy_rate +
                       5 * gates / costs.rate)};
}

Time few_rows_time(const Candidate&, const Shape& shape, const DeviceFacts& device, int) {
  const Costs& all = *device.costs;
  if (shape.is_step()) {
    const auto& step = all.step.few_rows;
    const Product product{.launch = step.launch + step.a_row * static_cast<double>(shape.batch - 1),
                          .bytes = shape.weights_bytes() * std::sqrt(shape.batch),
                          .read_rate = step.rate};
    const double weights = shape.weights_bytes();
    const double reading = weights > all.step.cache_bytes ? weights / step.memory_rate : 0;
    return Estimate{std::max(product.time(device), reading / device.memory())};
  }
  // A row of the GRU has as many sums as one of the LSTM.
  const bool of_lstm = shape.cell != CellType::kLltm;
  const auto& costs = of_lstm ? all.forward.lstm_few_rows : all.forward.few_rows;
  const ForwardCosts::FewRows& of = !shape.vector_rows  ? costs.unaligned
                                    : shape.in_floats() ? costs.floats
                                                        : costs.halves;
  // In TF32 a few tenths less than measured: where the forward is as fast either way, the backward
  // of few rows takes longer after a hopper kernel.
  const double launch = shape.arithmetic == Arithmetic::kTf32 && !of_lstm ? 2.2 : of.launch;
  const int64_t groups = ceil_div(shape.batch, kFewRows);
  const auto more_rows = static_cast<double>(ceil_div(shape.batch, groups) - 1);
  // All multiprocessors take as long as the one with the most columns of the state.
  const int64_t columns =
      ceil_div(groups * shape.state_size, device.multiprocessors) * device.multiprocessors;
  const auto elements = static_cast<double>(gates_of(shape.cell) * columns * shape.width());
  const Product product{.launch = launch + of.launch_a_row * more_rows,
                        .bytes = elements * (1 + of.a_row * more_rows),
                        .read_rate = of.rate};
  return Estimate{product.time(device)};
}

// The time of a chunk of 128 bytes by mma.sync, relative to 16 bits.
double tile_arithmetic(const Candidate& of, const Shape& shape, const ForwardCosts& costs) {
  const auto& factor = costs.arithmetic;
  switch (*shape.arithmetic) {
    case Arithmetic::kFloat32:
      return of.tile.columns == 8 ? factor.float32_columns_8
             : of.tile.rows == 64 ? factor.float32_rows_64
                                  : factor.float32;
    case Arithmetic::kTf32:
      return factor.tf32;
    default:
      return 1;
  }
}

// The mean factor over the chunks of old_h and input, if those whose rows span cache lines cost
// `factor` times as much.
double across_lines(const Shape& shape, double factor) {
  return 1 + (factor - 1) * shape.states_across_lines;
}

// The additional time of a block that writes rows that start anywhere. For 64 rows it takes `block`
// and, per hidden column, `column`.
double unaligned_end(const Candidate& of, const Shape& shape, double block, double column) {
  if (shape.state_size * shape.element_bytes() % 16 == 0) {
    return 0;
  }
  const auto rows = static_cast<double>(std::min<int64_t>(of.tile.rows, shape.batch));
  return (block + column * of.tile.columns) * rows / 64;
}

// The bytes of a chunk of K that a block copies: no rows beyond a small batch, and only the block's
// share of what a cluster shares.
double chunk_bytes(const Candidate& of, const Shape& shape, const ForwardCosts& costs) {
  const int64_t rows = std::min<int64_t>(ceil_div(shape.batch, 8) * 8, of.tile.rows);
  return 128 * (static_cast<double>(rows) * across_lines(shape, costs.states_across_lines) +
                static_cast<double>(gates_of(shape.cell) * of.tile.columns) / of.tile.row_tiles);
}

// Row tiles come in whole clusters.
int64_t count_tiles(const Candidate& of, const Shape& shape) {
  return ceil_div(ceil_div(shape.batch, of.tile.rows), of.tile.row_tiles) * of.tile.row_tiles *
         ceil_div(shape.state_size, of.tile.columns);
}

// With fewer than three chunks per rank by wgmma, the exchange takes longer than the split saves.
bool has_chunks_for(int ranks, int64_t chunks, const Candidate& of) {
  const int least = of.group == Group::kHopper && !of.float32 ? 3 : 1;
  return ranks == 1 || ranks * least <= chunks;
}

// What the exchange of the sums of a cluster adds to a block.
double exchange_time(const Candidate& of, int ranks, const ForwardCosts& costs) {
  if (ranks == 1) {
    return 0;
  }
  if (of.float32) {
    return of.tile.columns == 8 ? costs.float32_exchange.columns_8
           : of.tile.rows == 64 ? costs.float32_exchange.rows_64
                                : costs.float32_exchange.others;
  }
  const bool hopper = of.group == Group::kHopper;
  const auto& [once, a_rank] = hopper ? costs.wgmma_exchange : costs.tiles_exchange;
  return once + a_rank * ranks;
}

Time tiles_time(const Candidate& of, const Shape& shape, const DeviceFacts& device, int ranks) {
  const ForwardCosts& costs = device.costs->forward;
  const auto tile = of.times_as<ForwardTimes>().cell;
  const bool hopper = of.group == Group::kHopper;
  const int cluster = ranks * of.tile.row_tiles;
  const double places = device.resident_in_clusters_of(cluster);
  const double resident = of.blocks_a_multiprocessor * places;
  const int64_t chunks = std::max<int64_t>(
      shape.chunks(shape.state_size) + shape.chunks(shape.input_features + shape.packs.input_lead),
      1);
  if (!has_chunks_for(ranks, chunks, of) || resident < cluster) {
    return std::nullopt;
  }
  const auto blocks = static_cast<double>(count_tiles(of, shape) * ranks);
  const double active = std::min(blocks, resident);
  double chunk = hopper ? tile.chunk : tile.chunk * tile_arithmetic(of, shape, costs);
  if (hopper && !of.float32) {
    chunk = std::max(chunk * across_lines(shape, costs.chunk_across_lines),
                     active * chunk_bytes(of, shape, costs) / costs.chunk_rate);
  }
  const double weights = shape.weights_bytes();
  double read_rate = costs.read_rate;
  if (weights > costs.cache_bytes) {
    read_rate = std::min(read_rate, active * costs.block_read_rate) /
                (shape.weights_in_lines ? 1 : costs.read_across_lines);
  }
  const auto& anywhere = of.float32 ? costs.float32_unaligned : costs.unaligned;
  const double unaligned = hopper ? unaligned_end(of, shape, anywhere.block, anywhere.column) : 0;
  // A multiprocessor does not wait for others before it starts another block.
  const TiledTime tiled{
      .waves = std::max(std::ceil(blocks / places) / of.blocks_a_multiprocessor, 1.0),
      .chunks = rounds(chunks, ranks),
      .chunk = chunk,
      .rest = tile.block + exchange_time(of, ranks, costs) + unaligned / ranks,
      .reading = weights / read_rate};
  // The bytes of gates, new_h and new_cell, which are written, and of old_cell, which is read.
  const double traffic =
      static_cast<double>(shape.batch * shape.state_size) * 6 * shape.element_bytes();
  const double packing =
      shape.pack_bytes > 0 ? device.costs->packing.time(static_cast<double>(shape.pack_bytes)) : 0;
  return Estimate{tiled.time(device) + traffic / costs.write_rate + packing};
}

// A step of a sequence by wgmma. Its kernel starts as soon as there is room for its blocks, at once
// if several steps fit the GPU together. It then multiplies input before the previous step ends, up
// to kMostAhead steps ahead, and the time of a step is what remains: the chunks of h and the end of
// a block. If not, it takes as long as a cell that need not be launched, and the blocks of the last
// wave run beside the first ones of the next step.
Time step_time(const Candidate& of, const Shape& shape, const DeviceFacts& device, int ranks) {
  constexpr int64_t kMostAhead = 3;  // steps
  const Costs& all = *device.costs;
  const StepCosts::Shared& costs = of.float32 ? all.step.float32_shared : all.step.shared;
  const auto tile = of.times_as<ForwardTimes>().step;
  const int cluster = ranks * of.tile.row_tiles;
  const int resident = device.resident_in_clusters_of(cluster);
  const int64_t input_chunks = shape.chunks(shape.input_features);
  const int64_t chunks = input_chunks + shape.chunks(shape.state_size);
  if (!has_chunks_for(ranks, chunks, of) || resident < cluster) {
    return std::nullopt;
  }
  const int64_t blocks = count_tiles(of, shape) * ranks;
  // Blocks that share weights wait for each other. Of the smallest, those of two steps fit one
  // multiprocessor together.
  const bool two_fit = of.tile == TileShape{64, 8} && !of.float32;
  const int64_t steps_at_once =
      of.tile.row_tiles == 1 ? device.resident_in_clusters_of(cluster, two_fit) / blocks : 1;
  // Those of a further step load the input for about half of the time.
  const double loading =
      static_cast<double>(blocks * (std::max<int64_t>(steps_at_once, 1) + 1)) / 2;
  const double least = of.float32 ? 0
                                  : std::min(loading, static_cast<double>(resident)) *
                                        chunk_bytes(of, shape, all.forward) / all.step.chunk_rate;
  const auto early = static_cast<double>(input_chunks / ranks);
  const double early_time = early * std::max(tile.input_chunk, least);
  const double late_time = (rounds(chunks, ranks) - early) * std::max(tile.chunk, least);
  const double exchange = ranks > 1 ? costs.exchange + costs.exchange_a_rank * ranks : 0;
  const double unaligned = unaligned_end(of, shape, costs.unaligned, costs.unaligned_a_column);
  // Weights that L2 has no room for come from memory in every step.
  const double weights = shape.weights_bytes();
  TiledTime tiled{.chunk = late_time,
                  .rest = tile.block + exchange + unaligned / ranks,
                  .least = weights > all.step.cache_bytes ? weights / all.step.memory_rate : 0};
  // h is written, and the cell state, in float, is read and written.
  const auto elements = static_cast<double>(shape.batch * shape.state_size);
  const int size = shape.element_bytes();
  const bool reads_z_x = shape.cell == CellType::kLstm ||  // whose times were fitted with it
                         (shape.cell == CellType::kGru && has_z_x(shape));
  const double z_x = reads_z_x ? gates_of(shape.cell) * size : 0;
  const double traffic = elements * ((8 + size) / costs.write_rate + z_x / all.step.z_x_rate);
  if (steps_at_once > 1) {
    const auto ahead = static_cast<double>(std::min(steps_at_once - 1, kMostAhead));
    const double early = (early_time / ahead + costs.early_start) * device.slower();
    return Estimate{std::max(tiled.time(device), early) + traffic};
  }
  const double used = static_cast<double>(blocks) / resident;
  const auto& waves = cluster > 1 ? costs.waves_of_clusters : costs.waves;
  const double more = waves.used * (used - 1) + waves.whole * (std::ceil(used) - 1);
  tiled.waves += std::max(more, 0.0);
  tiled.chunk += early_time;
  tiled.rest += tile.alone;
  return Estimate{tiled.time(device) + traffic};
}

bool few_rows_supports(const Candidate&, const Shape& shape, const DeviceFacts&) {
  if (shape.width() >= int64_t{1} << 30) {
    return false;
  }
  // Only the cell's kernel supports 16 bits, and rows that start anywhere.
  return shape.is_step()
             ? (shape.cell != CellType::kGru || !has_z_x(shape)) && shape.batch <= kFewRows &&
                   shape.in_floats() && shape.vector_rows && shape.input_features % 4 == 0
             : shape.batch <= kMostFewRows;
}

bool wgmma_supports(const Candidate& of, const Shape& shape, const DeviceFacts& device) {
  // A step of a GRU that has z_x is one of an LLTM but for its elements.
  const CellType cell =
      shape.cell == CellType::kGru && has_z_x(shape) ? CellType::kLltm : shape.cell;
  return cell == of.cell && shape.batch < (int64_t{1} << 31) &&
         (!shape.is_step() || shape.pack_bytes == 0) &&
         device.resident_in_clusters_of(of.tile.row_tiles) > 0;
}

// The largest tiles need the shared memory of sm_80 or sm_90.
bool tiles_support(const Candidate& of, const Shape& shape, const DeviceFacts& device) {
  return (!shape.is_step() || shape.pack_bytes == 0) &&
         (of.tile.rows < 128 || device.shared_bytes_a_block >= 160 * 1024);
}

Time wgmma_time(const Candidate& of, const Shape& shape, const DeviceFacts& device, int ranks) {
  return shape.is_step() ? step_time(of, shape, device, ranks)
                         : tiles_time(of, shape, device, ranks);
}

// Three TF32 products are as accurate as SGEMM, except for few rows and short sums. There SGEMM is
// more accurate, and mma.sync nearly so, as are tiles of 8 columns for short sums. The steps of an
// LSTM and a GRU, where the alternative is SGEMM, have at most its error from four rows on.
bool are_exact(const Candidate& of, const Shape& shape) {
  return !of.float32 ||
         (shape.cell != CellType::kLltm
              ? shape.batch > 3
              : shape.batch > 16 && (of.tile.columns == 8 || multiplications(shape, 64) >= 1e7));
}

constexpr Candidate tiles(std::string_view name,
                          TileShape tile,
                          int most_ranks,
                          ForwardTimes times,
                          double blocks_a_multiprocessor = 1) {
  return {.name = name,
          .group = Group::kTiles,
          .estimate = tiles_time,
          .supports = tiles_support,
          .tile = tile,
          .most_ranks = most_ranks,
          .blocks_a_multiprocessor = blocks_a_multiprocessor,
          .times = std::bit_cast<decltype(Candidate::times)>(times)};
}

constexpr Candidate wgmma(std::string_view name,
                          TileShape tile,
                          int most_ranks,
                          ForwardTimes times,
                          bool float32 = false,
                          CellType cell = CellType::kLltm) {
  Candidate of = tiles(name, tile, most_ranks, times);
  of.group = Group::kHopper;
  of.estimate = wgmma_time;
  of.supports = wgmma_supports;
  of.is_exact = are_exact;
  of.cell = cell;
  of.float32 = float32;
  return of;
}

// Names, {rows, columns, row tiles}, the most ranks, and times: microseconds, measured as those in
// costs.h, but for the GRU's. Its chunks are those of the LLTM's product, or have 3/4 of the
// columns of the LSTM's, and its blocks end with as many sums as the LSTM's. Its steps with z_x are
// rows of the LLTM's.
// clang-format off
constexpr Candidate kCandidates[] = {
    {.name = "forward_few_rows", .group = Group::kFewRows, .estimate = few_rows_time, .supports = few_rows_supports, .tile = {kMostFewRows, 1}},
    wgmma("forward_wgmma_64x8", {64, 8}, 8,
        {.cell = {.chunk = 0.128, .block = 1.53}, .step = {.chunk = 0.146, .input_chunk = 0.0225, .block = 1.72, .alone = -0.718}}),
    wgmma("forward_wgmma_64x24", {64, 24}, 8,
        {.cell = {.chunk = 0.161, .block = 1.91}, .step = {.chunk = 0.168, .input_chunk = 0.116, .block = 2.12, .alone = 0.125}}),
    wgmma("forward_wgmma_64x40", {64, 40}, 8,
        {.cell = {.chunk = 0.272, .block = 1.88}, .step = {.chunk = 0.172, .input_chunk = 0.14, .block = 2.5, .alone = 0.146}}),
    wgmma("forward_wgmma_64x40_pairs", {64, 40, 2}, 4,
        {.cell = {.chunk = 0.193, .block = 1.97}, .step = {.chunk = 0.176, .input_chunk = 0.02, .block = 2.02, .alone = 0.24}}),
    wgmma("forward_wgmma_128x32", {128, 32}, 8,
        {.cell = {.chunk = 0.158, .block = 2.3}, .step = {.chunk = 0.226, .input_chunk = 0.206, .block = 2.82, .alone = 0.153}}),
    wgmma("forward_wgmma_128x32_pairs", {128, 32, 2}, 1,
        {.cell = {.chunk = 0.217, .block = 2.96}, .step = {.chunk = 0.254, .input_chunk = 0.02, .block = 2.48, .alone = -0.0444}}),
    wgmma("forward_wgmma_128x64_pairs", {128, 64, 2}, 1,
        {.cell = {.chunk = 0.37, .block = 4.2}, .step = {.chunk = 0.407, .input_chunk = 0.0201, .block = 3.75, .alone = -0.0737}}),
    wgmma("forward_wgmma_192x32", {192, 32}, 8,
        {.cell = {.chunk = 0.27, .block = 3.3}, .step = {.chunk = 0.323, .input_chunk = 0.25, .block = 3.08, .alone = 0.149}}),
    wgmma("forward_wgmma_float32_64x8", {64, 8}, 8,
        {.cell = {.chunk = 0.342, .block = 1.7}, .step = {.chunk = 0.314, .input_chunk = 0.154, .block = 2.04, .alone = 0.427}}, /*float32=*/true),
    wgmma("forward_wgmma_float32_64x32", {64, 32}, 8,
        {.cell = {.chunk = 0.507, .block = 1.98}, .step = {.chunk = 0.524, .input_chunk = 0.361, .block = 2.64, .alone = 0.254}}, /*float32=*/true),
    wgmma("forward_wgmma_float32_128x32", {128, 32}, 8,
        {.cell = {.chunk = 0.763, .block = 1.64}, .step = {.chunk = 0.741, .input_chunk = 0.537, .block = 3.6, .alone = 0.221}}, /*float32=*/true),
    wgmma("lstm_wgmma_64x8", {64, 8}, 8,
        {.cell = {.chunk = 0.16, .block = 1.6}, .step = {.chunk = 0.155, .input_chunk = 0.03, .block = 1.82, .alone = -0.886}}, /*float32=*/false, CellType::kLstm),
    wgmma("lstm_wgmma_64x24", {64, 24}, 8,
        {.cell = {.chunk = 0.18, .block = 2.0}, .step = {.chunk = 0.0755, .input_chunk = 0.155, .block = 2.52, .alone = 0.312}}, /*float32=*/false, CellType::kLstm),
    wgmma("lstm_wgmma_128x32", {128, 32}, 2,
        {.cell = {.chunk = 0.274, .block = 3.11}, .step = {.chunk = 0.26, .input_chunk = 0.311, .block = 3.16, .alone = 0.111}}, /*float32=*/false, CellType::kLstm),
    wgmma("lstm_wgmma_float32_64x24", {64, 24}, 8,
        {.cell = {.chunk = 0.52, .block = 2.0}, .step = {.chunk = 0.522, .input_chunk = 0.274, .block = 3.37, .alone = 0.0761}}, /*float32=*/true, CellType::kLstm),
    wgmma("lstm_wgmma_float32_128x16", {128, 16}, 8,
        {.cell = {.chunk = 0.6, .block = 1.8}, .step = {.chunk = 0.606, .input_chunk = 0.345, .block = 2.62, .alone = 0.764}}, /*float32=*/true, CellType::kLstm),
    wgmma("gru_wgmma_64x8", {64, 8}, 8,
        {.cell = {.chunk = 0.128, .block = 1.6}, .step = {.chunk = 0.146, .input_chunk = 0.0225, .block = 1.82, .alone = -0.718}}, /*float32=*/false, CellType::kGru),
    wgmma("gru_wgmma_64x24", {64, 24}, 8,
        {.cell = {.chunk = 0.161, .block = 2.0}, .step = {.chunk = 0.168, .input_chunk = 0.116, .block = 2.3, .alone = 0.125}}, /*float32=*/false, CellType::kGru),
    wgmma("gru_wgmma_128x32", {128, 32}, 8,
        {.cell = {.chunk = 0.206, .block = 3.11}, .step = {.chunk = 0.226, .input_chunk = 0.206, .block = 3.16, .alone = 0.153}}, /*float32=*/false, CellType::kGru),
    wgmma("gru_wgmma_128x32_pairs", {128, 32, 2}, 1,
        {.cell = {.chunk = 0.217, .block = 3.4}, .step = {.chunk = 0.254, .input_chunk = 0.02, .block = 2.8, .alone = -0.0444}}, /*float32=*/false, CellType::kGru),
    wgmma("gru_wgmma_float32_64x8", {64, 8}, 8,
        {.cell = {.chunk = 0.342, .block = 1.8}, .step = {.chunk = 0.314, .input_chunk = 0.154, .block = 2.14, .alone = 0.427}}, /*float32=*/true, CellType::kGru),
    wgmma("gru_wgmma_float32_64x32", {64, 32}, 8,
        {.cell = {.chunk = 0.52, .block = 2.3}, .step = {.chunk = 0.524, .input_chunk = 0.361, .block = 3.0, .alone = 0.254}}, /*float32=*/true, CellType::kGru),
    wgmma("gru_wgmma_float32_128x32", {128, 32}, 2,
        {.cell = {.chunk = 0.763, .block = 2.4}, .step = {.chunk = 0.741, .input_chunk = 0.537, .block = 4.2, .alone = 0.221}}, /*float32=*/true, CellType::kGru),
    tiles("forward_tiles_16x8", {16, 8}, 8,
        {.cell = {.chunk = 0.37, .block = 1.69}}, /*blocks_a_multiprocessor=*/2.2),
    tiles("forward_tiles_64x8", {64, 8}, 8,
        {.cell = {.chunk = 0.455, .block = 1.78}}),
    tiles("forward_tiles_64x32", {64, 32}, 8,
        {.cell = {.chunk = 0.738, .block = 2.54}}),
    tiles("forward_tiles_128x32", {128, 32}, 8,
        {.cell = {.chunk = 1.07, .block = 3.46}}),
    {.name = "forward_library", .group = Group::kLibrary, .estimate = time_by_library, .tile = {1, 1}},
};
// clang-format on

}  // namespace

std::span<const Candidate> forward_candidates() {
  return kCandidates;
}

Shape forward_shape(Arithmetic arithmetic, const ForwardProblem& p, bool is_step, CellType cell) {
  Shape shape{.work = is_step ? Work::kStep : Work::kForward,
              .cell = cell,
              .arithmetic = arithmetic,
              .batch = p.batch,
              .input_features = p.input_features,
              .state_size = p.state_size};
  const int size = element_size(arithmetic);
  ForwardPacks& packs = shape.packs;
  const auto must_pack = [&](const Matrix& matrix, int64_t rows, int64_t columns, bool anyway) {
    const bool packs_it = columns > 0 && (anyway || !is_describable(matrix, columns, size));
    shape.pack_bytes += packs_it ? rows * columns * size : 0;
    return packs_it;
  };
  // The weights of an LLTM's cell are one matrix, [h | input]. Others are two, each packed by
  // itself.
  if (p.input_features > 0 && cell == CellType::kLltm && !is_step) {
    packs.input_lead = p.state_size * size % 16 / size;
  }
  packs.input = must_pack(p.input, p.batch, p.input_features, packs.input_lead > 0);
  packs.old_h = must_pack(p.old_h, p.batch, p.state_size, false);
  packs.weights = must_pack(p.weights, shape.gates(), p.state_size, false);
  packs.weights_input = must_pack(
      p.weights_input.from(-packs.input_lead, size), shape.gates(), p.input_features, false);
  shape.weights_in_lines = packs.weights || p.weights.starts_at_lines(size);
  const int64_t across = (packs.old_h || p.old_h.starts_at_lines(size) ? 0 : p.state_size) +
                         (packs.input || p.input.starts_at_lines(size) ? 0 : p.input_features);
  shape.states_across_lines =
      static_cast<double>(across) / static_cast<double>(p.state_size + p.input_features);
  shape.vector_rows = p.input.starts_at_vectors(size) && p.old_h.starts_at_vectors(size) &&
                      p.weights.starts_at_vectors(size) && p.weights_input.starts_at_vectors(size);
  return shape;
}

ForwardPlan choose_forward(const Shape& shape,
                           const DeviceFacts& device,
                           const Selection& selection) {
  const Choice choice = choose(shape, device, selection);
  const Group group = choice.candidate->group;
  const bool packs = group == Group::kHopper || group == Group::kTiles;
  return {*shape.arithmetic,
          shape.cell,
          choice,
          packs ? shape.packs : ForwardPacks{},
          device.multiprocessors};
}

}  // namespace lltm::cuda
