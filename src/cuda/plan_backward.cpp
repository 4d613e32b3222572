// The candidates of the backward, by rules with what was measured beside each (H200, microseconds
// by graph replay). An estimate of a candidate's time would have to tell ten per cent from nothing
// here: the kernels differ by less than what a model of them errs by.
#include "plan_backward.h"

#include <algorithm>
#include <cmath>

namespace lltm::cuda {
namespace {

int64_t chunks_of(int64_t k, Arithmetic arithmetic) {
  return ceil_div(k, 128 / element_size(arithmetic));
}

/// Of columns of [h | x], in which no tile has columns of both.
int64_t column_tiles(const BackwardShape& shape, int64_t columns) {
  return ceil_div(shape.state_size, columns) + ceil_div(shape.input_features, columns);
}

/// The most ranks of a cluster for which all tiles are resident at once. The weights are read the
/// faster, the more multiprocessors read them.
int largest_split(const DeviceFacts& device, int64_t tiles, int64_t chunks, double blocks_per_sm) {
  for (int split = kLargestCluster; split > 1; --split) {
    if (split <= chunks && static_cast<double>(tiles * split) <=
                               blocks_per_sm * device.resident_in_clusters_of(split)) {
      return split;
    }
  }
  return 1;
}

// Multiplications, with the batch filled up to tiles of 64 rows.
double multiplications(const BackwardShape& shape) {
  return static_cast<double>(ceil_div(shape.batch, 64) * 64) * static_cast<double>(shape.gates()) *
         static_cast<double>(shape.width());
}

/// The tile kernels count tiles in 32 bits: 2^31 of them are rows and columns far beyond a GPU's
/// memory but for one-column states of 2^30 rows and more.
bool ours_run(const BackwardShape& s, const DeviceFacts& device) {
  return s.arithmetic && device.tiles &&
         ceil_div(s.batch, 16) * ceil_div(s.width(), 8) < (int64_t{1} << 28) &&
         ceil_div(s.gates(), 64) * ceil_div(s.width(), 64) < (int64_t{1} << 28);
}

/// Whether TMA can describe the matrices where they lie.
bool tma_reads(const BackwardShape& s, const DeviceFacts& device) {
  return ours_run(s, device) && device.wgmma && s.vector_rows && s.input_features > 0 &&
         s.batch < (int64_t{1} << 31);
}

bool always(const BackwardShape&, const DeviceFacts&) {
  return true;
}

/// Whether the tiles of d_weights, each a sum over the whole batch, are at work when all else is
/// done: each of `workers` takes tiles of so many rows and columns. By kernels of Hopper and by the
/// library, in float32 (128x96 a block) (2048,128,128) takes 66 and 56, (4096,64,128) 116 and 73,
/// (4096,256,256) 146 and 186, (65536,32,128) 1891 and 535; in TF32 (256x256 a pair of blocks) 56
/// and 40, 93 and 42, 110 and 100, 1396 and 338, but (8192,512,512) 322 and 349.
bool batch_is_long(const BackwardShape& s,
                   int64_t tile_rows,
                   int64_t tile_columns,
                   int64_t workers) {
  const int64_t batch_chunks = ceil_div(s.batch, 32);
  const int64_t all_chunks =
      ceil_div(s.width(), tile_columns) * (ceil_div(s.batch, tile_rows) * ceil_div(s.gates(), 32) +
                                           ceil_div(s.gates(), tile_rows) * batch_chunks);
  return batch_chunks > 36 + 2 * all_chunks / workers;
}

bool float32_batch_is_long(const BackwardShape& s, const DeviceFacts& device) {
  return s.arithmetic == Arithmetic::kFloat32 && batch_is_long(s, 128, 96, device.multiprocessors);
}

namespace few_rows {

// The whole backward in one launch, without tiles, four columns at a time or, in float, one.
bool supports(const BackwardShape& s, const DeviceFacts& device) {
  return ours_run(s, device) && s.batch <= kFewRows &&
         (is_float(*s.arithmetic) || (s.vector_rows && s.input_features % 4 == 0));
}

// Float32: (1,512,512) takes 5.4, tiles 17; (5,1000,1000) 13.7, the library 46; (8,512,512) 7.8.
// bfloat16: (1,512,512) 4.0, small tiles 6.1; (5,1000,1000) 13 and 14.3; but (8,512,512) some 7.5.
bool is_ahead(const BackwardShape& s, const DeviceFacts& device) {
  return device.clusters() && (is_float(*s.arithmetic) || s.batch <= 5);
}

BackwardTiles tiles(const BackwardShape& s, const DeviceFacts& device) {
  if (!device.clusters()) {
    return {FewRowsStrips{}};
  }
  // A block a multiprocessor, or else two, of which 224 are resident in clusters of up to seven:
  // (1,512,512) with four to six ranks 5.4, with eight 5.7; (5,1000,1000) with six, seven and
  // eight 15.0, 13.7 and 19.
  const int64_t strips = column_tiles(s, 64), groups = ceil_div(s.state_size, 16);
  int split = largest_split(device, strips, groups, 1);
  if (split < 4) {
    split = static_cast<int>(std::clamp<int64_t>(224 / strips, 1, std::min<int64_t>(groups, 7)));
  }
  return {FewRowsStrips{}, split};
}

}  // namespace few_rows

namespace wgmma_small {

// Products of 16-bit elements by wgmma in small tiles, which start while d_gates are formed.
// Without d_gates' two microseconds: (16,32,128) takes 1.9, (64,1024,128) 2.3 and (64,512,512) 4.0;
// other tiles 2.8, 3.0 and 4.8; but (128,1024,1024) 12.3 and 11.3, (64,2048,2048) 38 and 35.
bool supports(const BackwardShape& s, const DeviceFacts& device) {
  return tma_reads(s, device) && !is_float(*s.arithmetic) && s.input_features % 8 == 0 &&
         s.batch <= 64 && multiplications(s) <= 4e8;
}

// As many ranks as leave each of their blocks a multiprocessor: (64,512,512) 6.1 with eight, 6.4
// with four; (64,1024,128), 18 tiles, 4.2 with four and 4.7 with eight. Ranks with nothing to
// multiply have less to add up each, too: (16,8,8), whose K is one chunk, 2.9 with eight and 3.5
// with one.
BackwardTiles tiles(const BackwardShape& s, const DeviceFacts& device) {
  int split = kLargestCluster;
  while (split > 1 && column_tiles(s, 64) * split > device.multiprocessors) {
    split /= 2;
  }
  return {SmallGradientTiles{}, split};
}

}  // namespace wgmma_small

namespace wgmma_float32 {

// Three TF32 products by wgmma; rows may start anywhere.
bool supports(const BackwardShape& s, const DeviceFacts& device) {
  return ours_run(s, device) && device.wgmma && s.arithmetic == Arithmetic::kFloat32 &&
         s.batch < (int64_t{1} << 30) && s.gates() < (int64_t{1} << 30) &&
         s.width() < (int64_t{1} << 30);
}

// With d_gates: (64,1024,128) takes 8.7, by tiles 9.4; (64,512,512) 14.6 and 20.7; (128,1024,1024)
// 50 and 95; (256,2048,2048) 295 and 557; (13,1464,592) 22 and 37; (412,119,47) 16 and 27;
// (181,56,24) 9.2 and 10.5, but (156,208,40) 10.2 and 9.6, (77,911,52) 13.8 and 8.5.
bool is_ahead(const BackwardShape& s, const DeviceFacts&) {
  return s.batch > kFewRows && (multiplications(s) >= 2e7 || s.batch > 160);
}

// Microseconds of a chunk of K and of all else of a tile of 128x96.
constexpr double kChunk = 0.85, kTile = 2.5;
// Of the kernel that adds up parts of d_weights, and what it reads in a microsecond.
constexpr double kSum = 2, kSumRate = 3e6;

// When so many `units` of `unit` microseconds are done that follow `blocks` of `block`, each on a
// multiprocessor by itself, in order.
double makespan(int multiprocessors, int64_t blocks, double block, int64_t units, double unit) {
  const int64_t busy = blocks % multiprocessors;  // one block longer than the others
  const double begin = static_cast<double>(blocks / multiprocessors) * block;
  for (int64_t rounds = ceil_div(units, multiprocessors);; ++rounds) {
    const double late = std::floor(static_cast<double>(rounds) - block / unit);
    if ((multiprocessors - busy) * rounds + busy * static_cast<int64_t>(std::max(late, 0.0)) >=
        units) {
      return std::max(begin + static_cast<double>(rounds) * unit, begin + (busy > 0 ? block : 0));
    }
  }
}

// How many tiles of d_weights a block forms, one after the other, where there are many.
int weight_tiles_a_block(int64_t tiles) {
  return static_cast<int>(std::clamp<int64_t>(tiles / 264, 1, 8));
}

// How the batch of d_weights is cut, so that all multiprocessors take part and are done at the same
// time. Another part has to pay off: all are written, and added up.
Float32GradientPlan plan_of(const BackwardShape& s,
                            const DeviceFacts& device,
                            Float32GradientTile tile,
                            int split) {
  constexpr double kPaysOff = 0.92;
  const bool small = tile == Float32GradientTile::k64x96;
  const int64_t weight_tiles = ceil_div(s.gates(), small ? 64 : 128) * column_tiles(s, 96);
  Float32GradientPlan best{.tile = tile,
                           .weight_tiles_a_block = weight_tiles_a_block(weight_tiles)};
  if (small) {
    return best;
  }
  const int64_t batch_chunks = chunks_of(s.batch, *s.arithmetic);
  const auto gate_chunks = static_cast<double>(chunks_of(s.gates(), *s.arithmetic));
  const int64_t state_columns =
      s.forms_d_old_h ? column_tiles(s, 96) : ceil_div(s.input_features, 96);
  const int64_t state_blocks = ceil_div(s.batch, 128) * state_columns * split;
  const double state = gate_chunks / split * kChunk + kTile;
  const double bytes = static_cast<double>(s.gates() * s.width()) * 4;
  double best_us = 0;
  for (const int parts : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32}) {
    if (parts > 1 && 2 * parts > batch_chunks) {
      break;
    }
    const auto chunks = static_cast<double>(ceil_div(batch_chunks, parts));
    const double us = makespan(device.multiprocessors,
                               state_blocks,
                               state,
                               weight_tiles * parts,
                               chunks * kChunk + kTile) +
                      (parts > 1 ? kSum + (parts + 1) * bytes / kSumRate : 0);
    if (parts == 1 || us < kPaysOff * best_us) {
      best.weight_parts = parts;
      best.weight_tiles_a_block = parts == 1 ? best.weight_tiles_a_block : 1;
      best_us = us;
    }
  }
  return best;
}

// The tiles of d_weights need multiprocessors too: (128,1024,1024), 22 tiles, 45 with two ranks, 52
// with three.
BackwardTiles tiles(const BackwardShape& s, const DeviceFacts& device) {
  const bool small = s.batch <= 64;
  const int split = largest_split(device,
                                  ceil_div(s.batch, small ? 64 : 128) * column_tiles(s, 96),
                                  chunks_of(s.gates(), *s.arithmetic),
                                  small ? 1 : 0.45);
  const auto tile = small ? Float32GradientTile::k64x96 : Float32GradientTile::k128x96;
  return {{plan_of(s, device, tile, split)}, split};
}

}  // namespace wgmma_float32

namespace wgmma_tf32 {

// TF32 products by wgmma, of up to 512 rows: beyond them the other kernel is ahead everywhere,
// (1024,1024,1024) 84 and 89.
bool supports(const BackwardShape& s, const DeviceFacts& device) {
  return tma_reads(s, device) && s.arithmetic == Arithmetic::kTf32 && s.batch <= 512 &&
         !batch_is_long(s, 256, 256, device.multiprocessors / 2);
}

// With d_gates: (64,512,512) takes 11.9, tiles 15.0; (33,1200,288) 11.8 and 12.4; but (64,1024,128)
// 10.8 and 7.7. (128,1024,1024) 27, the library 49; (256,2048,2048) 110 and 186; but (32,64,4096)
// 167 and 148.
bool is_ahead(const BackwardShape& s, const DeviceFacts&) {
  const double work = multiplications(s);
  return work >= 8e7 && s.batch >= 16 && (s.batch > 64 || work <= 3e9);
}

// Half of the pairs of blocks form d_old_h and d_input, nine chunks of K at least each:
// (256,2048,2048) with 1, 2, 3 and 4 parts 137, 110, 114 and 112; (128,1024,1024) with 2, 3, 4 and
// 5 32.9, 27.8, 26.8 and 29.2; (64,512,512) with 4, 5, 6 and 8 12.4, 12.0, 12.4 and 12.7.
BackwardTiles tiles(const BackwardShape& s, const DeviceFacts& device) {
  const Tf32BatchTile tile = s.batch <= 64    ? Tf32BatchTile::k64
                             : s.batch <= 128 ? Tf32BatchTile::k128
                                              : Tf32BatchTile::k256;
  const int pairs = device.multiprocessors / 2;
  const int64_t parts = std::min(pairs / 2 / (ceil_div(s.width(), 256) * ceil_div(s.batch, 256)),
                                 chunks_of(s.gates(), *s.arithmetic) / 9);
  return {Tf32BackwardPairs{tile, pairs}, static_cast<int>(std::max<int64_t>(parts, 1))};
}

}  // namespace wgmma_tf32

namespace wgmma {

// Products of 16-bit elements and in TF32 by wgmma; rows may start anywhere. It counts rows in int,
// some beyond the last.
bool supports(const BackwardShape& s, const DeviceFacts& device) {
  constexpr int64_t kMost = int64_t{1} << 30;
  return ours_run(s, device) && device.wgmma && s.arithmetic != Arithmetic::kFloat32 &&
         s.batch < kMost && s.gates() < kMost && s.width() < kMost;
}

// Whether what comes before the products, packing in 16 bits and transposing in TF32, pays off
// beside tiles of mma.sync: in 16 bits (8,125,142) takes 11.1 and by tiles 6.8, (10,414,145) 11.9
// and 10.9, but (46,40,18) 6.5 and 6.8, (4,168,485) 14.2 and 21.6, (1804,9,18) 15.9 and 115; in
// TF32 (139,71,37) 12.9 and 10.7, (4,168,485) 20.2 and 17.3, (90,1464,104) 12.5 and 8.9, but
// (120,48,342) 13.7 and 17.8, (273,64,135) 15.4 and 16.5, (1804,9,18) 21.5 and 76.
bool is_ahead(const BackwardShape& s, const DeviceFacts&) {
  const double work = multiplications(s);
  if (!is_float(*s.arithmetic)) {
    return s.vector_rows || s.batch > 16 || work > 2e7;
  }
  return s.batch > 256 || work > 8e7 || (!s.vector_rows && s.batch > 16 && work > 3e7);
}

BackwardTiles tiles(const BackwardShape& s, const DeviceFacts& device) {
  return {choose_gradient_plan(*s.arithmetic,
                               s.batch,
                               s.input_features,
                               s.state_size,
                               /*one_segment=*/s.arithmetic == Arithmetic::kTf32,
                               device.multiprocessors)
              .plan};
}

}  // namespace wgmma

namespace mma_sync {

// Products against cuBLAS's: (64,512,512) bfloat16 7.5 against 13.6, TF32 12.2 against 20;
// (128,1024,1024) 27 against 22 and 44 against 40, but float32 85 against 99. The tiles have 64
// rows: at (5,1000,1000) cuBLAS is ahead, 28 against 32 in TF32 and 37 against 42 in float32.
bool is_ahead(const BackwardShape& s, const DeviceFacts& device) {
  return !float32_batch_is_long(s, device) &&
         (multiplications(s) <= 3e8 || (s.arithmetic == Arithmetic::kFloat32 && s.batch >= 16));
}

BackwardTiles tiles(const BackwardShape& s, const DeviceFacts& device) {
  const int64_t count = ceil_div(s.batch, 64) * column_tiles(s, 64);
  // As large tiles as sm_80 and sm_90 have shared memory for: (256,2048,2048) in float32 takes 531,
  // 594 with tiles of 64x64.
  if (count >= 256 && device.shared_bytes_a_block >= 160 * 1024) {
    return {ProductTile::k128x128};
  }
  // The tiles of d_weights need multiprocessors too: (64,512,512) is as fast with 4 ranks, 64
  // blocks, as with 8; (128,1024,1024), 64 tiles, is fastest with two.
  const int64_t chunks = chunks_of(s.gates(), *s.arithmetic);
  const int split = !device.clusters()          ? 1
                    : count > 40 && count <= 66 ? static_cast<int>(std::min<int64_t>(2, chunks))
                                                : largest_split(device, count, chunks, 0.6);
  return {ProductTile::k64x64, split};
}

}  // namespace mma_sync

BackwardTiles library_tiles(const BackwardShape&, const DeviceFacts&) {
  return {LibraryProducts{}};
}

constexpr BackwardCandidate kCandidates[] = {
    {"backward_few_rows", Group::kFewRows, few_rows::supports, few_rows::is_ahead, few_rows::tiles},
    {"backward_wgmma_small", Group::kHopper, wgmma_small::supports, always, wgmma_small::tiles},
    {"backward_wgmma_float32",
     Group::kHopper,
     wgmma_float32::supports,
     wgmma_float32::is_ahead,
     wgmma_float32::tiles},
    {"backward_wgmma_tf32",
     Group::kHopper,
     wgmma_tf32::supports,
     wgmma_tf32::is_ahead,
     wgmma_tf32::tiles},
    {"backward_wgmma", Group::kHopper, wgmma::supports, wgmma::is_ahead, wgmma::tiles},
    {"backward_tiles", Group::kTiles, ours_run, mma_sync::is_ahead, mma_sync::tiles},
    {"backward_library", Group::kLibrary, always, always, library_tiles},
};

}  // namespace

std::span<const BackwardCandidate> backward_candidates() {
  return kCandidates;
}

const BackwardCandidate& choose_backward(const BackwardShape& shape,
                                         const DeviceFacts& device,
                                         std::optional<Group> group,
                                         std::string_view name) {
  const auto first_of = [&](const auto& wanted) -> const BackwardCandidate* {
    const auto found = std::ranges::find_if(kCandidates, [&](const BackwardCandidate& of) {
      return of.supports(shape, device) && wanted(of);
    });
    return found == std::end(kCandidates) ? nullptr : found;
  };
  const BackwardCandidate* chosen = first_of([&](const BackwardCandidate& of) {
    return !name.empty() ? of.name == name
           : group       ? of.group == *group
                         : of.is_ahead(shape, device);
  });
  for (const Group other : {Group::kTiles, Group::kLibrary}) {
    if (chosen == nullptr) {
      chosen = first_of([&](const BackwardCandidate& of) { return of.group == other; });
    }
  }
  return *chosen;
}

}  // namespace lltm::cuda
