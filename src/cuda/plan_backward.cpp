// Which kernels compute a backward: rules, with what was measured beside each (H200, microseconds
// by graph replay).
#include "kernels/backward_kernels.h"
#include "kernels/forward_kernels.h"
#include "plan.h"
#include "problem.h"

#include <algorithm>
#include <cmath>

namespace lltm::cuda {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t chunks_of(int64_t k, Arithmetic arithmetic) {
  const bool is_float = arithmetic == Arithmetic::kFloat32 || arithmetic == Arithmetic::kTf32;
  return ceil_div(k, is_float ? 32 : 64);
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

/// Whether a block may have the shared memory of the largest tiles, as on sm_80 and sm_90.
bool large_tiles_fit(const DeviceFacts& device) {
  return device.shared_bytes_a_block >= 160 * 1024;
}

bool tiles_run(std::optional<Group> force,
               const DeviceFacts& device,
               const CellSizes<int64_t>& sizes) {
  // The tile kernels count tiles in 32 bits: 2^31 of them are rows and columns far beyond a GPU's
  // memory but for one-column states of 2^30 rows and more.
  const bool countable =
      ceil_div(sizes.batch, 16) * ceil_div(sizes.state_size + sizes.input_features, 8) <
          (1LL << 28) &&
      ceil_div(3 * sizes.state_size, 64) * ceil_div(sizes.state_size + sizes.input_features, 64) <
          (1LL << 28);
  return force != Group::kLibrary && countable && device.tiles;
}

// Multiplications, with the batch filled up to the rows of a tile.
double multiplications(const CellSizes<int64_t>& sizes, int64_t tile_rows) {
  return static_cast<double>(ceil_div(sizes.batch, tile_rows) * tile_rows) *
         static_cast<double>(3 * sizes.state_size) *
         static_cast<double>(sizes.state_size + sizes.input_features);
}

/// Whether matrices are such that Hopper's kernels can read them.
bool hopper_reads(const DeviceFacts& device,
                  const CellSizes<int64_t>& sizes,
                  bool rows_at_16_bytes) {
  return rows_at_16_bytes && sizes.input_features > 0 && sizes.batch < (int64_t{1} << 31) &&
         device.wgmma;
}

/// Whether the kernels for few rows can compute these sizes: they take four columns at a time.
bool few_rows_run(std::optional<Group> force,
                  const CellSizes<int64_t>& sizes,
                  bool rows_at_16_bytes) {
  return (force == std::nullopt || force == Group::kFewRows) && sizes.batch <= kFewRows &&
         rows_at_16_bytes && sizes.input_features % 4 == 0;
}

/// Whether the tiles of d_weights, each a sum over the whole batch, are at work when all else is
/// done: each of `workers` takes tiles of so many rows and columns. By kernels of Hopper and by the
/// library, in float32 (128x96 a block) (2048,128,128) takes 66 and 56, (4096,64,128) 116 and 73,
/// (4096,256,256) 146 and 186, (65536,32,128) 1891 and 535; in TF32 (256x256 a pair of blocks) 56
/// and 40, 93 and 42, 110 and 100, 1396 and 338, but (8192,512,512) 322 and 349.
bool batch_is_long(const CellSizes<int64_t>& sizes,
                   int64_t tile_rows,
                   int64_t tile_columns,
                   int64_t workers) {
  const int64_t batch_chunks = ceil_div(sizes.batch, 32);
  const int64_t all_chunks =
      ceil_div(sizes.state_size + sizes.input_features, tile_columns) *
      (ceil_div(sizes.batch, tile_rows) * ceil_div(3 * sizes.state_size, 32) +
       ceil_div(3 * sizes.state_size, tile_rows) * batch_chunks);
  return batch_chunks > 36 + 2 * all_chunks / workers;
}

/// Three TF32 products by wgmma.
std::optional<BackwardPath> hopper_for_float32_backward(std::optional<Group> force,
                                                        const DeviceFacts& device,
                                                        const CellSizes<int64_t>& sizes) {
  // With d_gates: (64,1024,128) takes 8.7, by tiles 9.4; (64,512,512) 15.2 and 20.7;
  // (128,1024,1024) 51 and 94; (256,2048,2048) 305 and 583.
  if (force == std::nullopt && (multiplications(sizes, 64) < 2e7 || sizes.batch < 16)) {
    return std::nullopt;
  }
  const bool small = sizes.batch <= 64;
  const int64_t tiles = ceil_div(sizes.batch, small ? 64 : 128) *
                        (ceil_div(sizes.state_size, 96) + ceil_div(sizes.input_features, 96));
  // The tiles of d_weights need multiprocessors too: (128,1024,1024), 22 tiles, 45 with two ranks,
  // 52 with three.
  const int split = largest_split(
      device, tiles, chunks_of(3 * sizes.state_size, Arithmetic::kFloat32), small ? 1 : 0.45);
  return BackwardPath{
      Arithmetic::kFloat32, small ? SplitProductTile::k64x96 : SplitProductTile::k128x96, split};
}

/// TF32 products by wgmma.
std::optional<BackwardPath> hopper_for_tf32_backward(std::optional<Group> force,
                                                     const DeviceFacts& device,
                                                     const CellSizes<int64_t>& sizes) {
  // It counts rows in int, some beyond the last.
  if (sizes.batch >= (int64_t{1} << 30)) {
    return std::nullopt;
  }
  // With d_gates: (64,512,512) takes 11.9, tiles 15.0; (33,1200,288) 11.8 and 12.4; but
  // (64,1024,128) 10.8 and 7.7. (128,1024,1024) 27, the library 49; (256,2048,2048) 110 and 186;
  // (1024,1024,1024) 98 and 167; but (32,64,4096) 167 and 148.
  if (force == std::nullopt) {
    const double work = multiplications(sizes, 64);
    if (work < 8e7 || sizes.batch < 16 || (sizes.batch <= 64 && work > 3e9)) {
      return std::nullopt;
    }
  }
  const Tf32BatchTile tile = sizes.batch <= 64    ? Tf32BatchTile::k64
                             : sizes.batch <= 128 ? Tf32BatchTile::k128
                                                  : Tf32BatchTile::k256;
  // Half of the pairs of blocks form d_old_h and d_input, nine chunks of K at least each:
  // (256,2048,2048) with 1, 2, 3 and 4 parts 137, 110, 114 and 112; (128,1024,1024) with 2, 3, 4
  // and 5 32.9, 27.8, 26.8 and 29.2; (64,512,512) with 4, 5, 6 and 8 12.4, 12.0, 12.4 and 12.7.
  const int pairs = device.multiprocessors / 2;
  const int64_t tiles =
      ceil_div(sizes.state_size + sizes.input_features, 256) * ceil_div(sizes.batch, 256);
  const int64_t chunks = chunks_of(3 * sizes.state_size, Arithmetic::kTf32);
  const int64_t parts = std::max<int64_t>(std::min(pairs / 2 / tiles, chunks / 9), 1);
  return BackwardPath{Arithmetic::kTf32, Tf32BackwardPairs{tile, pairs}, static_cast<int>(parts)};
}

/// The whole backward in one launch, without tiles.
std::optional<BackwardPath> few_rows_for_backward(std::optional<Group> force,
                                                  const DeviceFacts& device,
                                                  Arithmetic arithmetic,
                                                  const CellSizes<int64_t>& sizes) {
  const bool is_half = arithmetic == Arithmetic::kFloat16 || arithmetic == Arithmetic::kBFloat16;
  if (force == std::nullopt) {
    // Float32: (1,512,512) takes 5.4, tiles 17; (5,1000,1000) 13.7, the library 46;
    // (8,512,512) 7.8. bfloat16: (1,512,512) 4.0, small tiles 6.1; (5,1000,1000) 13 and 14.3; but
    // (8,512,512) some 7.5.
    if (!device.clusters() || (is_half && sizes.batch > 5)) {
      return std::nullopt;
    }
  }
  const int64_t strips = ceil_div(sizes.state_size, 64) + ceil_div(sizes.input_features, 64);
  const int64_t groups = ceil_div(sizes.state_size, 16);
  int split = 1;
  if (device.clusters()) {
    // A block a multiprocessor, or else two, of which 224 are resident in clusters of up to seven:
    // (1,512,512) with four to six ranks 5.4, with eight 5.7; (5,1000,1000) with six, seven and
    // eight 15.0, 13.7 and 19.
    split = largest_split(device, strips, groups, 1);
    if (split < 4) {
      split = static_cast<int>(std::clamp<int64_t>(224 / strips, 1, std::min<int64_t>(groups, 7)));
    }
  }
  return BackwardPath{arithmetic, FewRowsStrips{}, split};
}

/// Products of 16-bit elements by wgmma in small tiles, which start while d_gates are formed.
std::optional<BackwardPath> small_tiles_for_backward(std::optional<Group> force,
                                                     const DeviceFacts& device,
                                                     Arithmetic arithmetic,
                                                     const CellSizes<int64_t>& sizes) {
  // Without d_gates' two microseconds: (16,32,128) takes 1.9, (64,1024,128) 2.3 and (64,512,512)
  // 4.0; other tiles 2.8, 3.0 and 4.8; but (128,1024,1024) 12.3 and 11.3, (64,2048,2048) 38 and 35.
  if (sizes.input_features % 8 != 0 || sizes.batch > 64 || multiplications(sizes, 64) > 4e8 ||
      force == Group::kTiles) {
    return std::nullopt;
  }
  // As many ranks as leave each of their blocks a multiprocessor: (64,512,512) 6.1 with
  // eight, 6.4 with four; (64,1024,128), 18 tiles, 4.2 with four and 4.7 with eight. Ranks with
  // nothing to multiply have less to add up each, too: (16,8,8), whose K is one chunk, 2.9 with
  // eight and 3.5 with one.
  const int64_t tiles = ceil_div(sizes.batch, 64) *
                        (ceil_div(sizes.state_size, 64) + ceil_div(sizes.input_features, 64));
  int split = kLargestCluster;
  while (split > 1 && tiles * split > device.multiprocessors) {
    split /= 2;
  }
  return BackwardPath{arithmetic, HopperSmallTiles{}, split};
}

/// Whether what comes before the products, packing in 16 bits and transposing in TF32, pays off
/// beside tiles of mma.sync: in 16 bits (8,125,142) takes 11.1 and by tiles 6.8, (10,414,145) 11.9
/// and 10.9, but (46,40,18) 6.5 and 6.8, (4,168,485) 14.2 and 21.6, (1804,9,18) 15.9 and 115; in
/// TF32 (139,71,37) 12.9 and 10.7, (4,168,485) 20.2 and 17.3, (90,1464,104) 12.5 and 8.9, but
/// (120,48,342) 13.7 and 17.8, (273,64,135) 15.4 and 16.5, (1804,9,18) 21.5 and 76.
bool wgmma_is_ahead(bool is_half, const CellSizes<int64_t>& sizes, bool rows_at_16_bytes) {
  const double work = multiplications(sizes, 64);
  if (is_half) {
    return rows_at_16_bytes || sizes.batch > 16 || work > 2e7;
  }
  return sizes.batch > 256 || work > 8e7 || (!rows_at_16_bytes && sizes.batch > 16 && work > 3e7);
}

/// Products of 16-bit elements and in TF32 by wgmma; rows may start anywhere.
std::optional<BackwardPath> wgmma_for_backward(std::optional<Group> force,
                                               const DeviceFacts& device,
                                               Arithmetic arithmetic,
                                               const CellSizes<int64_t>& sizes) {
  // It counts rows in int, some beyond the last.
  if ((force != std::nullopt && force != Group::kHopper) || !device.wgmma ||
      sizes.batch >= (int64_t{1} << 30) || 3 * sizes.state_size >= (int64_t{1} << 30) ||
      sizes.state_size + sizes.input_features >= (int64_t{1} << 30)) {
    return std::nullopt;
  }
  const GradientChoice choice =
      choose_gradient_plan(arithmetic,
                           sizes.batch,
                           sizes.input_features,
                           sizes.state_size,
                           /*one_segment=*/arithmetic == Arithmetic::kTf32,
                           device.multiprocessors);
  return BackwardPath{arithmetic, choice.plan, 1};
}

}  // namespace

std::optional<BackwardPath> plan_backward(const DeviceFacts& device,
                                          c10::ScalarType dtype,
                                          const CellSizes<int64_t>& sizes,
                                          bool rows_at_16_bytes) {
  const std::optional<Group> force = selection().group;
  const std::optional<Arithmetic> arithmetic = arithmetic_of(dtype);
  if (!arithmetic || !tiles_run(force, device, sizes) || sizes.batch * sizes.state_size == 0) {
    return std::nullopt;
  }
  if (few_rows_run(force, sizes, rows_at_16_bytes)) {
    if (const auto path = few_rows_for_backward(force, device, *arithmetic, sizes)) {
      return path;
    }
  }
  const bool is_half = *arithmetic == Arithmetic::kFloat16 || *arithmetic == Arithmetic::kBFloat16;
  const int64_t sms = device.multiprocessors;
  if (force == std::nullopt && *arithmetic == Arithmetic::kFloat32 &&
      batch_is_long(sizes, 128, 96, sms)) {
    return std::nullopt;
  }
  if ((force == std::nullopt || force == Group::kHopper) &&
      hopper_reads(device, sizes, rows_at_16_bytes)) {
    const auto path =
        is_half ? small_tiles_for_backward(force, device, *arithmetic, sizes)
        : *arithmetic == Arithmetic::kFloat32 ? hopper_for_float32_backward(force, device, sizes)
        : sizes.batch > 512 || batch_is_long(sizes, 256, 256, sms / 2)
            ? std::nullopt  // the other tiles are ahead: (1024,1024,1024) 84, these 89
            : hopper_for_tf32_backward(force, device, sizes);
    if (path) {
      return path;
    }
  }
  if (*arithmetic != Arithmetic::kFloat32 &&
      (force == Group::kHopper || wgmma_is_ahead(is_half, sizes, rows_at_16_bytes))) {
    if (const auto path = wgmma_for_backward(force, device, *arithmetic, sizes)) {
      return path;
    }
  }
  // Products against cuBLAS's: (64,512,512) bfloat16 7.5 against 13.6, TF32 12.2 against 20;
  // (128,1024,1024) 27 against 22 and 44 against 40, but float32 85 against 99. The tiles have 64
  // rows: at (5,1000,1000) cuBLAS is ahead, 28 against 32 in TF32 and 37 against 42 in float32.
  if (force == std::nullopt) {
    const bool mostly_padding = sizes.batch < 16;
    if (multiplications(sizes, 64) > 3e8 &&
        (*arithmetic != Arithmetic::kFloat32 || mostly_padding)) {
      return std::nullopt;
    }
  }
  const auto tiles = [&](int64_t size) {
    return ceil_div(sizes.batch, size) *
           (ceil_div(sizes.state_size, size) + ceil_div(sizes.input_features, size));
  };
  // (256,2048,2048) in float32: 531; 594 with tiles of 64x64.
  if (tiles(64) >= 256 && large_tiles_fit(device)) {
    return BackwardPath{*arithmetic, ProductTile::k128x128, 1};
  }
  // The tiles of d_weights need multiprocessors too: (64,512,512) is as fast with 4 ranks, 64
  // blocks, as with 8; (128,1024,1024), 64 tiles, is fastest with two.
  const int64_t count = tiles(64);
  const int64_t chunks = chunks_of(3 * sizes.state_size, *arithmetic);
  const int split = !device.clusters()          ? 1
                    : count > 40 && count <= 66 ? static_cast<int>(std::min<int64_t>(2, chunks))
                                                : largest_split(device, count, chunks, 0.6);
  return BackwardPath{*arithmetic, ProductTile::k64x64, split};
}

}  // namespace lltm::cuda
