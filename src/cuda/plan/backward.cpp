// The candidates for the backward: what each supports, its tiles and its estimated time.
#include "backward.h"

#include "../scheduler/schedule_gradients.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace lltm::cuda {
namespace {

int64_t chunks_of(int64_t k, Arithmetic arithmetic) {
  return ceil_div(k, 128 / element_size(arithmetic));
}

/// Tiles across the columns of [h | x]. No tile contains columns of both.
int64_t column_tiles(const BackwardShape& shape, int64_t columns) {
  return ceil_div(shape.state_size, columns) + ceil_div(shape.input_features, columns);
}

/// The same for d_old_h and d_input, counting only what is computed.
int64_t state_column_tiles(const BackwardShape& shape, int64_t columns) {
  return shape.forms_d_old_h ? column_tiles(shape, columns)
                             : ceil_div(shape.input_features, columns);
}

/// The largest cluster with which all tiles are resident at once. More multiprocessors read the
/// weights faster.
int largest_split(const DeviceFacts& device, int64_t tiles, int64_t chunks, double blocks_per_sm) {
  for (int split = kLargestCluster; split > 1; --split) {
    if (split <= chunks && static_cast<double>(tiles * split) <=
                               blocks_per_sm * device.resident_in_clusters_of(split)) {
      return split;
    }
  }
  return 1;
}

/// Multiplications of one product, with the batch rounded up to tiles of 64 rows.
double multiplications(const BackwardShape& shape) {
  return static_cast<double>(ceil_div(shape.batch, 64) * 64) * static_cast<double>(shape.gates()) *
         static_cast<double>(shape.width());
}

/// The size of weights, and of d_weights.
double weights_bytes(const BackwardShape& s) {
  return static_cast<double>(s.gates() * s.width()) * s.element_bytes();
}

/// The time at which `blocks` blocks of `block` microseconds and then `units` units of `unit`
/// microseconds are done, started in this order on `at_once` places.
double makespan(int64_t at_once, int64_t blocks, double block, int64_t units, double unit) {
  const int64_t busy = blocks % at_once;  // places that run one block more than the others
  const double begin = static_cast<double>(blocks / at_once) * block;
  for (int64_t rounds = ceil_div(units, at_once);; ++rounds) {
    const double late = std::floor(static_cast<double>(rounds) - block / unit);
    if ((at_once - busy) * rounds + busy * static_cast<int64_t>(std::max(late, 0.0)) >= units) {
      return std::max(begin + static_cast<double>(rounds) * unit, begin + (busy > 0 ? block : 0));
    }
  }
}

double gate_gradients_time(const BackwardShape& s, const BackwardCosts& costs) {
  const auto elements = static_cast<double>(s.batch * s.state_size);
  return elements * costs.gate_gradients.element +
         10 * elements * s.element_bytes() / costs.gate_gradients.rate;
}

/// In TF32 the same kernel also transposes the inputs.
double transposition_time(const BackwardShape& s, const BackwardCosts& costs) {
  return 2 * static_cast<double>(s.batch * s.width()) * s.element_bytes() /
         costs.gate_gradients.rate;
}

/// Copying [old_h | input] and, if their own rows start anywhere, the weights. These and their copy
/// compete for the cache.
double operands_packing_time(const BackwardShape& s, const DeviceFacts& device) {
  const bool packs_weights = s.width() * s.element_bytes() % 16 != 0;
  const int64_t rows = s.batch + (packs_weights ? s.gates() : 0);
  return device.costs->packing.time(static_cast<double>(rows * s.width()) * s.element_bytes()) +
         (packs_weights ? device.costs->backward.wgmma.packed_megabyte * 1e-6 * weights_bytes(s)
                        : 0);
}

/// Whether our kernels can run. They count tiles in 32 bits; only a one-column state of 2^30 rows
/// or more could exceed that and still fit a GPU's memory.
bool ours_run(const BackwardShape& s, const DeviceFacts& device) {
  return s.arithmetic && device.tiles &&
         ceil_div(s.batch, 16) * ceil_div(s.width(), 8) < (int64_t{1} << 28) &&
         ceil_div(s.gates(), 64) * ceil_div(s.width(), 64) < (int64_t{1} << 28);
}

namespace few_rows {

// The whole backward in one launch, without tiles. A thread takes four columns or one.
bool supports(const BackwardShape& s, const DeviceFacts& device) {
  return ours_run(s, device) && s.batch <= kFewRows;
}

int split_of(const BackwardShape& s, const DeviceFacts& device) {
  // One block per multiprocessor, or two, of which 224 are resident in clusters of up to seven.
  const int64_t strips = column_tiles(s, 64), groups = ceil_div(s.state_size, 16);
  int split = largest_split(device, strips, groups, 1);
  if (split < 4) {
    split = static_cast<int>(std::clamp<int64_t>(224 / strips, 1, std::min<int64_t>(groups, 7)));
    while (split > 1 && device.resident_in_clusters_of(split) == 0) {
      --split;
    }
  }
  return split;
}

BackwardEstimate estimate(const BackwardShape& s, const DeviceFacts& device) {
  const auto& costs = device.costs->backward.few_rows;
  const BackwardCosts::FewRows& of = is_float(*s.arithmetic) ? costs.floats : costs.halves;
  const int split = split_of(s, device);
  // Blocks that share rows are resident at once.
  const int64_t waves = split > 1 ? 1 : ceil_div(column_tiles(s, 64), 2 * device.multiprocessors);
  const auto groups = static_cast<double>(waves * ceil_div(ceil_div(s.state_size, 16), split));
  // One column at a time, 16 bits take as many instructions as float.
  const BackwardCosts::FewRows& walked = s.vector_rows ? of : costs.floats;
  const double walk = groups * (walked.group + walked.group_a_row * static_cast<double>(s.batch)) *
                      (s.vector_rows ? 1 : costs.unaligned);
  return {{FewRowsStrips{}, split}, of.launch + std::max(walk, 2 * weights_bytes(s) / of.rate)};
}

}  // namespace few_rows

namespace wgmma_small {

// Products in 16 bits by wgmma, in small tiles that start while d_gates are computed. TMA reads all
// matrices in place.
bool supports(const BackwardShape& s, const DeviceFacts& device) {
  return ours_run(s, device) && device.wgmma && !is_float(*s.arithmetic) && s.vector_rows &&
         s.input_features > 0 && s.input_features % 8 == 0 && s.batch <= 64 &&
         multiplications(s) <= 4e8;
}

// As many ranks as still give each block a multiprocessor. Even ranks with nothing to multiply
// help, by sharing the additions.
int split_of(const BackwardShape& s, const DeviceFacts& device) {
  int split = kLargestCluster;
  while (split > 1 && (column_tiles(s, 64) * split > device.multiprocessors ||
                       device.resident_in_clusters_of(split) == 0)) {
    split /= 2;
  }
  return split;
}

constexpr int kBlocksPerSm = 3;

BackwardEstimate estimate(const BackwardShape& s, const DeviceFacts& device) {
  const auto& costs = device.costs->backward.wgmma_small;
  const int split = split_of(s, device);
  const auto chunks = static_cast<double>(ceil_div(chunks_of(s.gates(), *s.arithmetic), split));
  const auto blocks = static_cast<double>(column_tiles(s, 64) * split +
                                          ceil_div(s.gates(), 64) * column_tiles(s, 128));
  return {{SmallGradientTiles{}, split},
          costs.launch + gate_gradients_time(s, device.costs->backward) + chunks * costs.chunk +
              split * costs.rank + blocks / (kBlocksPerSm * device.multiprocessors) * costs.block};
}

}  // namespace wgmma_small

namespace wgmma_float32 {

// Float32 by three TF32 products of wgmma. Rows may start anywhere.
bool supports(const BackwardShape& s, const DeviceFacts& device) {
  return ours_run(s, device) && device.wgmma && s.arithmetic == Arithmetic::kFloat32 &&
         s.batch < (int64_t{1} << 30) && s.gates() < (int64_t{1} << 30) &&
         s.width() < (int64_t{1} << 30);
}

/// Both products, as schedule_gradients() distributes them.
double products_time(const BackwardShape& s,
                     const DeviceFacts& device,
                     const Float32GradientPlan& plan) {
  const auto& costs = device.costs->backward.wgmma_float32;
  const auto& of = plan.tile == Float32GradientTile::k64x96 ? costs.tile_64x96 : costs.tile_128x96;
  const auto chunks = [&](int64_t k, int shares) {
    return static_cast<double>(ceil_div(chunks_of(k, *s.arithmetic), shares)) * of.chunk *
           (s.vector_rows ? 1 : costs.unaligned);
  };
  const double state =
      chunks(s.gates(), plan.ranks) + of.state_tile + (plan.ranks > 1 ? of.exchange : 0);
  const double weight = chunks(s.batch, plan.weight_parts) + of.weight_tile;
  const GradientSchedule schedule = schedule_gradients({.batch = s.batch,
                                                        .input_features = s.input_features,
                                                        .state_size = s.state_size,
                                                        .d_old_h = s.forms_d_old_h,
                                                        .d_input = true,
                                                        .d_weights = true},
                                                       plan);
  return schedule.shares.makespan(state, weight) +
         (plan.weight_parts > 1
              ? costs.sum + (plan.weight_parts + 1) * weights_bytes(s) / costs.sum_rate
              : 0);
}

BackwardEstimate estimate(const BackwardShape& s, const DeviceFacts& device) {
  const int64_t state_chunks = chunks_of(s.gates(), *s.arithmetic);
  const int64_t batch_chunks = chunks_of(s.batch, *s.arithmetic);
  Float32GradientPlan best{.tile = {}, .blocks = 0};
  double least = 0;
  const auto consider = [&](const Float32GradientPlan& plan, double factor) {
    const double us = products_time(s, device, plan);
    if (best.blocks == 0 || us * factor < least) {
      best = plan;
      least = us;
    }
  };
  for (const auto tile : {Float32GradientTile::k64x96, Float32GradientTile::k128x96}) {
    const int64_t state_tiles =
        ceil_div(s.batch, rows_of(tile)) * state_column_tiles(s, kFloat32GradientColumns);
    for (const int ranks : {1, 2, 4, 8}) {
      // A cluster has at most one tile whose K is shared.
      const int resident = device.resident_in_clusters_of(ranks);
      if (resident < ranks ||
          (ranks > 1 && (ranks > state_chunks || state_tiles > resident / ranks))) {
        continue;
      }
      for (const int parts : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32}) {
        // Splitting the batch of d_weights keeps all multiprocessors busy to the end. More parts
        // have to pay off, since all of them are written, read and added.
        if (parts == 1 || 2 * parts <= batch_chunks) {
          consider({.tile = tile, .ranks = ranks, .weight_parts = parts, .blocks = resident},
                   parts > best.weight_parts ? 1.05 : 1);
        }
      }
    }
  }
  return {{best},
          device.costs->backward.wgmma_float32.launch +
              gate_gradients_time(s, device.costs->backward) + least};
}

}  // namespace wgmma_float32

namespace wgmma {

// Products in 16 bits and in TF32 by wgmma. Rows may start anywhere. The kernel counts rows in int,
// also those by which the last tile exceeds the matrix.
bool supports(const BackwardShape& s, const DeviceFacts& device) {
  constexpr int64_t kMost = int64_t{1} << 30;
  return ours_run(s, device) && device.wgmma && s.arithmetic != Arithmetic::kFloat32 &&
         s.batch < kMost && s.gates() < kMost && s.width() < kMost;
}

// In TF32 nothing is packed: weights are read in place, and the inputs transposed anyway.
BackwardEstimate estimate(const BackwardShape& s, const DeviceFacts& device) {
  const bool tf32 = s.arithmetic == Arithmetic::kTf32;
  const auto [plan, us] = choose_gradient_plan(s, device);
  const double copies = tf32            ? transposition_time(s, device.costs->backward)
                        : s.vector_rows ? 0
                                        : operands_packing_time(s, device);
  return {{plan}, gate_gradients_time(s, device.costs->backward) + copies + us};
}

}  // namespace wgmma

namespace mma_sync {

// Large products take the largest tiles that the shared memory of sm_80 and sm_90 holds.
BackwardTiles tiles_of(const BackwardShape& s, const DeviceFacts& device) {
  const int64_t count = ceil_div(s.batch, 64) * column_tiles(s, 64);
  if (count >= 256 && device.shared_bytes_a_block >= 160 * 1024) {
    return {ProductTile::k128x128};
  }
  // Fewer ranks than would fit: the tiles of d_weights need multiprocessors, too.
  const int64_t chunks = chunks_of(s.gates(), *s.arithmetic);
  const int split = !device.clusters()          ? 1
                    : count > 40 && count <= 66 ? static_cast<int>(std::min<int64_t>(2, chunks))
                                                : largest_split(device, count, chunks, 0.6);
  return {ProductTile::k64x64, split};
}

BackwardEstimate estimate(const BackwardShape& s, const DeviceFacts& device) {
  const BackwardCosts::Tiles& of = device.costs->backward.tiles.of(*s.arithmetic);
  const BackwardTiles tiles = tiles_of(s, device);
  const bool small = std::get<ProductTile>(tiles.tile) == ProductTile::k64x64;
  const int64_t size = small ? 64 : 128;
  const double factor = s.vector_rows ? 1 : of.unaligned;
  const auto block = [&](int64_t k, int shares) {
    const auto chunks = static_cast<double>(ceil_div(chunks_of(k, *s.arithmetic), shares));
    return chunks * (small ? of.small_chunk : of.large_chunk) * factor +
           (small ? of.small_rest : of.large_rest);
  };
  return {tiles,
          of.launch + gate_gradients_time(s, device.costs->backward) +
              makespan(int64_t{small ? 2 : 1} * device.multiprocessors,
                       ceil_div(s.batch, size) * state_column_tiles(s, size) * tiles.split,
                       block(s.gates(), tiles.split),
                       ceil_div(s.gates(), size) * column_tiles(s, size),
                       block(s.batch, 1))};
}

}  // namespace mma_sync

namespace library {

bool supports(const BackwardShape&, const DeviceFacts&) {
  return true;
}

BackwardEstimate estimate(const BackwardShape& s, const DeviceFacts& device) {
  const auto& costs = device.costs->backward.library;
  const BackwardCosts::Library& of = s.arithmetic ? costs.in.of(*s.arithmetic) : costs.float64;
  const auto gates = static_cast<double>(s.batch * s.gates());
  const auto columns = static_cast<double>(64 * (column_tiles(s, 64) + state_column_tiles(s, 64)));
  const double products = 2 * gates * columns / of.rate;
  if (s.batch > INT32_MAX) {
    return {{LibraryProducts{}}, std::numeric_limits<double>::infinity()};  // as in the forward
  }
  return {{LibraryProducts{}},
          of.launch + gate_gradients_time(s, device.costs->backward) +
              3 * weights_bytes(s) / of.weights_rate * (s.vector_rows ? 1 : 2) +
              2 * gates * s.element_bytes() / of.gates_rate +
              (s.vector_rows ? products : of.unaligned_launch + of.unaligned * products)};
}

}  // namespace library

constexpr BackwardCandidate kCandidates[] = {
    {"backward_few_rows", Group::kFewRows, few_rows::supports, few_rows::estimate},
    {"backward_wgmma_small", Group::kHopper, wgmma_small::supports, wgmma_small::estimate},
    {"backward_wgmma_float32", Group::kHopper, wgmma_float32::supports, wgmma_float32::estimate},
    {"backward_wgmma", Group::kHopper, wgmma::supports, wgmma::estimate},
    {"backward_tiles", Group::kTiles, ours_run, mma_sync::estimate},
    {"backward_library", Group::kLibrary, library::supports, library::estimate},
};

}  // namespace

std::span<const BackwardCandidate> backward_candidates() {
  return kCandidates;
}

std::optional<BackwardEstimate> estimate_if_supported(const BackwardCandidate& candidate,
                                                      const BackwardShape& shape,
                                                      const DeviceFacts& device,
                                                      int ranks) {
  return ranks == 0 && candidate.supports(shape, device)
             ? std::optional(candidate.estimate(shape, device))
             : std::nullopt;
}

BackwardChoice choose_backward(const BackwardShape& shape,
                               const DeviceFacts& device,
                               const Selection& selection) {
  return choose(backward_candidates(), shape, device, selection);
}

}  // namespace lltm::cuda
