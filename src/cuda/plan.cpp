#include "plan.h"

#include "kernels/backward_kernels.h"
#include "kernels/forward_kernels.h"
#include "problem.h"
#include "version.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace lltm::cuda {
namespace {

enum class Force { kNone, kFewRows, kHopper, kTiles, kLibrary };

Force forced_path() {
  const char* const value = std::getenv("LLTM_CUDA_PATH");
  const std::string_view path = value == nullptr ? "" : value;
  if (path.empty() || path == "auto") {
    return Force::kNone;
  }
  if (path == "few_rows") {
    return Force::kFewRows;
  }
  if (path == "hopper") {
    return Force::kHopper;
  }
  if (path == "tiles") {
    return Force::kTiles;
  }
  TORCH_CHECK(
      path == "library",
      "lltm: expected the environment variable LLTM_CUDA_PATH to be auto, few_rows, hopper, tiles"
      " or library, got ",
      path);
  return Force::kLibrary;
}

/// The arithmetic of the tile kernels for a dtype; nothing for float64. PyTorch's own switch
/// decides about TF32, as for its matrix products.
std::optional<Arithmetic> arithmetic_of(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat: {
      const bool tf32 =
          at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
          at::Float32Precision::TF32;
      return tf32 ? Arithmetic::kTf32 : Arithmetic::kFloat32;
    }
    case at::kHalf:
      return Arithmetic::kFloat16;
    case at::kBFloat16:
      return Arithmetic::kBFloat16;
    default:
      return std::nullopt;
  }
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t chunks_of(int64_t k, Arithmetic arithmetic) {
  const bool is_float = arithmetic == Arithmetic::kFloat32 || arithmetic == Arithmetic::kTf32;
  return ceil_div(k, is_float ? 32 : 64);
}

// How many blocks are resident at once, of 132 multiprocessors, in clusters of 1, 2, ... 8:
// clusters do not span the groups that the multiprocessors come in.
constexpr int64_t kResident[] = {132, 132, 126, 120, 100, 126, 98, 120};
constexpr int kLargestCluster = 8;
static_assert(std::size(kResident) == kLargestCluster);

/// The most ranks of a cluster for which all tiles are resident at once. The weights are read the
/// faster, the more multiprocessors read them.
int largest_split(const cudaDeviceProp& device,
                  int64_t tiles,
                  int64_t chunks,
                  double blocks_per_sm) {
  const double scale = blocks_per_sm * device.multiProcessorCount / 132;
  for (int split = 8; split > 1; --split) {
    if (split <= chunks && static_cast<double>(tiles * split) <= scale * kResident[split - 1]) {
      return split;
    }
  }
  return 1;
}

/// Whether a block may have the shared memory of the largest tiles, as on sm_80 and sm_90.
bool large_tiles_fit(const cudaDeviceProp& device) {
  return device.sharedMemPerBlockOptin >= 160 * 1024;
}

bool tiles_run(Force force, const cudaDeviceProp& device, const CellSizes<int64_t>& sizes) {
  // The tile kernels count tiles in 32 bits: 2^31 of them are rows and columns far beyond a GPU's
  // memory but for one-column states of 2^30 rows and more.
  const bool countable =
      ceil_div(sizes.batch, 16) * ceil_div(sizes.state_size + sizes.input_features, 8) <
          (1LL << 28) &&
      ceil_div(3 * sizes.state_size, 64) * ceil_div(sizes.state_size + sizes.input_features, 64) <
          (1LL << 28);
  return force != Force::kLibrary && countable && device.major >= 8;
}

// Multiplications, with the batch filled up to the rows of a tile.
double multiplications(const CellSizes<int64_t>& sizes, int64_t tile_rows) {
  return static_cast<double>(ceil_div(sizes.batch, tile_rows) * tile_rows) *
         static_cast<double>(3 * sizes.state_size) *
         static_cast<double>(sizes.state_size + sizes.input_features);
}

/// Whether the device runs code built for 90a, and such code was built.
bool hopper_runs(const cudaDeviceProp& device) {
  static const bool built =
      std::string_view(LLTM_CUDA_ARCHITECTURES).find("90a") != std::string_view::npos;
  return built && device.major == 9 && device.minor == 0;
}

/// Whether matrices are such that Hopper's kernels can read them.
bool hopper_reads(const cudaDeviceProp& device,
                  const CellSizes<int64_t>& sizes,
                  bool rows_at_16_bytes) {
  return rows_at_16_bytes && sizes.input_features > 0 && sizes.batch < (int64_t{1} << 31) &&
         hopper_runs(device);
}

/// Whether the kernels for few rows can compute these sizes: they take four columns at a time.
bool few_rows_run(Force force, const CellSizes<int64_t>& sizes, bool rows_at_16_bytes) {
  return (force == Force::kNone || force == Force::kFewRows) && sizes.batch <= kFewRows &&
         rows_at_16_bytes && sizes.input_features % 4 == 0;
}

// What a block of the float32 forward takes, microseconds: a chunk, and whatever else there is, by
// itself and in a cluster.
struct ThreeTf32TileTime {
  ThreeTf32Tile tile;
  int64_t rows, hidden;
  double chunk, block, cluster;
};
constexpr ThreeTf32TileTime kThreeTf32TileTimes[] = {
    {ThreeTf32Tile::k64x8, 64, 8, 0.33, 1.4, 2.4},
    {ThreeTf32Tile::k64x32, 64, 32, 0.6, 1.5, 3.3},
    {ThreeTf32Tile::k128x32, 128, 32, 0.85, 1.5, 4.2}};

/// Three TF32 products by wgmma, with the tile and the ranks that should take the least time.
/// Measured: (64,512,512) 7.0 (64 rows, six ranks; the other tiles 11.6), (128,1024,1024) 21.8 (64
/// rows, two ranks; 22.5 by 128 rows and three; 45), (256,2048,2048) 120 (128 rows; 148 by 64;
/// 291).
std::optional<ForwardPath> hopper_for_float32_forward(Force force,
                                                      const cudaDeviceProp& device,
                                                      const CellSizes<int64_t>& sizes) {
  // (64,1024,128) takes 4.5, by tiles 6.3; (64,512,128) 3.7 and 5.3; (64,256,256) 4.2 and 6.2. With
  // few rows, and in short sums, SGEMM is more exact, and tiles nearly so: mean errors at
  // (16,32,128) are 2.26e-8, 1.90e-8 and 2.02e-8.
  if (force == Force::kNone && (multiplications(sizes, 64) < 1e7 || sizes.batch <= 16)) {
    return std::nullopt;
  }
  const double scale = device.multiProcessorCount / 132.0;
  const int64_t chunks = chunks_of(sizes.state_size, Arithmetic::kFloat32) +
                         chunks_of(sizes.input_features, Arithmetic::kFloat32);
  std::optional<ForwardPath> best;
  double best_time = 0;
  for (const ThreeTf32TileTime& of : kThreeTf32TileTimes) {
    const int64_t tiles = ceil_div(sizes.batch, of.rows) * ceil_div(sizes.state_size, of.hidden);
    for (int split = 1; split <= std::min<int64_t>(kLargestCluster, chunks); ++split) {
      const double resident = scale * static_cast<double>(kResident[split - 1]);
      const double rounds = std::ceil(static_cast<double>(tiles * split) / resident);
      const double time = rounds * (static_cast<double>(ceil_div(chunks, split)) * of.chunk +
                                    (split == 1 ? of.block : of.cluster));
      if (!best || time < best_time) {
        best = ForwardPath{Arithmetic::kFloat32, of.tile, split};
        best_time = time;
      }
    }
  }
  return best;
}

std::optional<ForwardPath> hopper_for_forward(Force force,
                                              const cudaDeviceProp& device,
                                              Arithmetic arithmetic,
                                              const CellSizes<int64_t>& sizes) {
  // Ahead of the other paths but for large products in 16 bits, whose tiles end one after the
  // other: (1024,1024,1024) takes 24, the library 28; (512,2048,2048) 45 both; (1024,2048,2048) 90
  // and 84; (4096,32,128) 6 and 10, (65536,32,128) 96 and 83. In TF32 (1024,2048,2048) takes 163
  // and 171.
  if (force == Force::kNone && arithmetic != Arithmetic::kTf32 &&
      (multiplications(sizes, 16) > 1e10 || sizes.batch > 32768)) {
    return std::nullopt;
  }
  const int64_t sms = device.multiProcessorCount;
  const auto columns = [&](int64_t hidden) { return ceil_div(sizes.state_size, hidden); };
  WgmmaTile tile{};
  int64_t tiles = 0, row_tiles = 1;
  if (sizes.batch <= 64) {
    // As narrow as lets three or four ranks a tile fill the multiprocessors: (64,512,512) in
    // bfloat16 3.3 with 24 columns, 3.5 with 32; (5,1000,1000) 6.4 with 40, 6.6 with 32.
    const int64_t hidden = columns(8) <= sms / 4 ? 8 : columns(24) <= sms / 4 ? 24 : 40;
    tile = hidden == 8 ? WgmmaTile::k64x8 : hidden == 24 ? WgmmaTile::k64x24 : WgmmaTile::k64x40;
    tiles = columns(hidden);
  } else {
    // (128,1024,1024) in bfloat16: 5.9 in pairs of 64x40, two ranks; 6.7 in tiles of 128x40, four
    // ranks. (256,2048,2048), which reads less in large tiles: 22.5 in pairs of 128x32, that are
    // 128 blocks; 26 in pairs of 128x40, or in fours.
    row_tiles = 2;
    const int64_t large = ceil_div(sizes.batch, 256) * columns(32);
    tile = sizes.batch > 128 && large * 2 > sms / 2 ? WgmmaTile::k128x32InPairs
                                                    : WgmmaTile::k64x40InPairs;
    tiles = tile == WgmmaTile::k128x32InPairs ? large : ceil_div(sizes.batch, 128) * columns(40);
  }
  // As many ranks as are resident at once, and have three chunks of K at least to themselves:
  // (64,1024,128), 16 tiles, 2.7 with six ranks, 4.9 with seven, whose last cluster has to wait;
  // (16,32,128) 2.0 with one and 2.2 with two.
  const int64_t chunks =
      chunks_of(sizes.state_size, arithmetic) + chunks_of(sizes.input_features, arithmetic);
  const double scale = static_cast<double>(sms) / 132;
  int split = 1;
  if (tile != WgmmaTile::k128x32InPairs) {
    for (int ranks = 2; ranks * row_tiles <= kLargestCluster; ++ranks) {
      const int64_t cluster = ranks * row_tiles;
      if (ranks * 3 <= chunks && static_cast<double>(tiles * cluster) <=
                                     scale * static_cast<double>(kResident[cluster - 1])) {
        split = ranks;
      }
    }
  }
  return ForwardPath{arithmetic, tile, split};
}

/// A product with a few vectors, in float32 also where TF32 is allowed.
std::optional<ForwardPath> few_rows_for_forward(Force force,
                                                const cudaDeviceProp& device,
                                                Arithmetic arithmetic,
                                                const CellSizes<int64_t>& sizes) {
  // Float32: (1,512,512) takes 2.9, tiles 6.9; (5,1000,1000) 6.9, the library 16.6;
  // (8,512,512) 3.9. In TF32 Hopper's tiles take 3.7 for (1,512,512), and no longer for more rows;
  // in bfloat16 2.9.
  const bool earned =
      arithmetic == Arithmetic::kFloat32 ||
      (arithmetic == Arithmetic::kTf32 && (sizes.batch <= 4 || force == Force::kFewRows));
  if (!earned) {
    return std::nullopt;
  }
  // The columns of the state evenly on all multiprocessors, in as many rounds as it takes.
  const int64_t sms = device.multiProcessorCount;
  const int64_t rounds = ceil_div(sizes.state_size, kFewRowsWarps * sms);
  const FewRowsColumns columns{static_cast<int>(ceil_div(sizes.state_size, rounds * sms))};
  return ForwardPath{Arithmetic::kFloat32, columns, 1};
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
std::optional<BackwardPath> hopper_for_float32_backward(Force force,
                                                        const cudaDeviceProp& device,
                                                        const CellSizes<int64_t>& sizes) {
  // With d_gates: (64,1024,128) takes 8.7, by tiles 9.4; (64,512,512) 15.2 and 20.7;
  // (128,1024,1024) 51 and 94; (256,2048,2048) 305 and 583.
  if (force == Force::kNone && (multiplications(sizes, 64) < 2e7 || sizes.batch < 16)) {
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
std::optional<BackwardPath> hopper_for_tf32_backward(Force force,
                                                     const cudaDeviceProp& device,
                                                     const CellSizes<int64_t>& sizes) {
  // It counts rows in int, some beyond the last.
  if (sizes.batch >= (int64_t{1} << 30)) {
    return std::nullopt;
  }
  // With d_gates: (64,512,512) takes 11.9, tiles 15.0; (33,1200,288) 11.8 and 12.4; but
  // (64,1024,128) 10.8 and 7.7. (128,1024,1024) 27, the library 49; (256,2048,2048) 110 and 186;
  // (1024,1024,1024) 98 and 167; but (32,64,4096) 167 and 148.
  if (force == Force::kNone) {
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
  const int pairs = device.multiProcessorCount / 2;
  const int64_t tiles =
      ceil_div(sizes.state_size + sizes.input_features, 256) * ceil_div(sizes.batch, 256);
  const int64_t chunks = chunks_of(3 * sizes.state_size, Arithmetic::kTf32);
  const int64_t parts = std::max<int64_t>(std::min(pairs / 2 / tiles, chunks / 9), 1);
  return BackwardPath{Arithmetic::kTf32, Tf32BackwardPairs{tile, pairs}, static_cast<int>(parts)};
}

/// The whole backward in one launch, without tiles.
std::optional<BackwardPath> few_rows_for_backward(Force force,
                                                  const cudaDeviceProp& device,
                                                  Arithmetic arithmetic,
                                                  const CellSizes<int64_t>& sizes) {
  const bool is_half = arithmetic == Arithmetic::kFloat16 || arithmetic == Arithmetic::kBFloat16;
  if (force == Force::kNone) {
    // Float32: (1,512,512) takes 5.4, tiles 17; (5,1000,1000) 13.7, the library 46;
    // (8,512,512) 7.8. bfloat16: (1,512,512) 4.0, small tiles 6.1; (5,1000,1000) 13 and 14.3; but
    // (8,512,512) some 7.5.
    if (!clusters_available() || (is_half && sizes.batch > 5)) {
      return std::nullopt;
    }
  }
  const int64_t strips = ceil_div(sizes.state_size, 64) + ceil_div(sizes.input_features, 64);
  const int64_t groups = ceil_div(sizes.state_size, 16);
  int split = 1;
  if (clusters_available()) {
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

/// Products of 16-bit elements by wgmma.
std::optional<BackwardPath> hopper_for_half_backward(Force force,
                                                     const cudaDeviceProp& device,
                                                     Arithmetic arithmetic,
                                                     const CellSizes<int64_t>& sizes) {
  // It writes gradients by TMA too, and counts rows in int, some beyond the last.
  if (sizes.input_features % 8 != 0 || sizes.batch >= (int64_t{1} << 30)) {
    return std::nullopt;
  }
  // Small tiles and pairs of large ones, with d_gates: (64,512,512) takes 6.1 and 14.4,
  // (128,1024,1024) 14.8 and 14.9, (512,512,512) 18 and 20, (64,2048,2048) 40 and 48; but
  // (256,768,768) 16.9 and 16.2, (256,1024,1024) 24 and 21, (128,2048,2048) 60 and 49.
  if (sizes.batch <= 64 || multiplications(sizes, 64) < 8.5e8) {
    // As many ranks as leave each of their blocks a multiprocessor: (64,512,512) 6.1 with
    // eight, 6.4 with four; (64,1024,128), 18 tiles, 4.2 with four and 4.7 with eight;
    // (128,1024,1024) 14.8 with two, 16.5 with four. Ranks with nothing to multiply have less to
    // add up each, too: (16,8,8), whose K is one chunk, 2.9 with eight and 3.5 with one.
    const int64_t tiles = ceil_div(sizes.batch, 64) *
                          (ceil_div(sizes.state_size, 64) + ceil_div(sizes.input_features, 64));
    int split = kLargestCluster;
    while (split > 1 && tiles * split > device.multiProcessorCount) {
      split /= 2;
    }
    return BackwardPath{arithmetic, HopperSmallTiles{}, split};
  }
  const int pairs = device.multiProcessorCount / 2;
  const int64_t columns = ceil_div(sizes.state_size, 256) + ceil_div(sizes.input_features, 256);
  const int64_t tiles = columns * ceil_div(sizes.batch, 256);
  // With more tiles of d_old_h and d_input than half of the pairs, few pairs may be left with all
  // of d_weights: (4096,512,512) takes 490, the library 74; (4096,1024,1024) 423 and 172.
  // (2048,512,512) has 32 tiles: 37 and 45. (4096,256,256) takes 54 and 41, (65536,32,128) 729 and
  // 143.
  if (force == Force::kNone && (tiles > pairs / 2 || batch_is_long(sizes, 256, 256, pairs))) {
    return std::nullopt;
  }
  // Half of the pairs of blocks form d_old_h and d_input, the others d_weights. (128,1024,1024)
  // with 2, 4, 6 and 8 parts 24, 17.7, 16.0 and 16.8; (256,2048,2048) with 1, 2 and 3 70, 53
  // and 57.
  const int64_t parts = sizes.batch <= 128 ? std::clamp<int64_t>(pairs / 2 / columns * 2, 2, 6)
                                           : std::clamp<int64_t>(pairs / 2 / tiles, 1, 4);
  return BackwardPath{arithmetic, HopperBackwardPairs{pairs}, static_cast<int>(parts)};
}

}  // namespace

// The figures beside the rules: H200, microseconds by graph replay, docs/cuda-kernels.md has more.
std::optional<ForwardPath> plan_forward(const cudaDeviceProp& device,
                                        c10::ScalarType dtype,
                                        const CellSizes<int64_t>& sizes,
                                        bool rows_at_16_bytes) {
  const Force force = forced_path();
  const std::optional<Arithmetic> arithmetic = arithmetic_of(dtype);
  if (!arithmetic || !tiles_run(force, device, sizes)) {
    return std::nullopt;
  }
  if (few_rows_run(force, sizes, rows_at_16_bytes)) {
    if (const auto path = few_rows_for_forward(force, device, *arithmetic, sizes)) {
      return path;
    }
  }
  if ((force == Force::kNone || force == Force::kHopper) &&
      hopper_reads(device, sizes, rows_at_16_bytes)) {
    const auto path = *arithmetic == Arithmetic::kFloat32
                          ? hopper_for_float32_forward(force, device, sizes)
                          : hopper_for_forward(force, device, *arithmetic, sizes);
    if (path) {
      return path;
    }
  }
  // mma.sync from padded shared memory is bound by shared memory where the product is large and
  // cheap; cuBLAS has wgmma: (128,1024,1024) in bfloat16 17 against 9, in TF32 30 against 19. At
  // (64,512,512) it is 7 against 7 and 9 against 15; at (65536,32,128) in bfloat16 166 against 83.
  // Three TF32 products win everywhere.
  if (force == Force::kNone && *arithmetic != Arithmetic::kFloat32 &&
      multiplications(sizes, 16) > 3e8 &&
      (sizes.state_size + sizes.input_features > 256 || sizes.batch > 32768)) {
    return std::nullopt;
  }
  // One tile row with little in it, where rows start anywhere: (5,1000,1000) takes 16 in TF32, the
  // library 13; 17 and 16 in float32, 8.8 and 8.3 in bfloat16.
  if (force == Force::kNone && sizes.batch <= 8 && multiplications(sizes, 16) > 8e7) {
    return std::nullopt;
  }
  const int64_t sms = device.multiProcessorCount;
  const int64_t chunks =
      chunks_of(sizes.state_size, *arithmetic) + chunks_of(sizes.input_features, *arithmetic);
  const auto tiles = [&](int64_t rows, int64_t hidden) {
    return ceil_div(sizes.batch, rows) * ceil_div(sizes.state_size, hidden);
  };
  ForwardTile tile{};
  int64_t count = 0;
  double blocks_per_sm = 1;
  if (sizes.batch <= 16) {
    // Blocks so small that two a multiprocessor are right: (1,512,512) 6.4 with 4 ranks, 7.1
    // with 3.
    tile = ForwardTile::k16x8;
    count = tiles(16, 8);
    blocks_per_sm = 2.2;
  } else if (tiles(64, 8) <= sms) {
    // (64,1024,128) in float32 6.2 with 6 ranks; 7.3 with 8, whose last cluster has to wait.
    tile = ForwardTile::k64x8;
    count = tiles(64, 8);
  } else if (sizes.batch <= 64 || tiles(128, 32) < sms * 3 / 4 || !large_tiles_fit(device)) {
    // (128,1024,1024) in float32: 50 with two ranks; 51 with tiles of 128x32 and three.
    tile = ForwardTile::k64x32;
    count = tiles(64, 32);
  } else {
    // (256,2048,2048) in float32: 276; 291 with tiles of 64x32, which read more.
    tile = ForwardTile::k128x32;
    count = tiles(128, 32);
  }
  const int split = clusters_available()
                        ? largest_split(device, count, std::max<int64_t>(chunks, 1), blocks_per_sm)
                        : 1;
  return ForwardPath{*arithmetic, tile, split};
}

std::optional<BackwardPath> plan_backward(const cudaDeviceProp& device,
                                          c10::ScalarType dtype,
                                          const CellSizes<int64_t>& sizes,
                                          bool rows_at_16_bytes) {
  const Force force = forced_path();
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
  if (force == Force::kNone && !is_half) {
    const int64_t sms = device.multiProcessorCount;
    if (*arithmetic == Arithmetic::kTf32 ? batch_is_long(sizes, 256, 256, sms / 2)
                                         : batch_is_long(sizes, 128, 96, sms)) {
      return std::nullopt;
    }
  }
  if ((force == Force::kNone || force == Force::kHopper) &&
      hopper_reads(device, sizes, rows_at_16_bytes)) {
    const auto path = is_half ? hopper_for_half_backward(force, device, *arithmetic, sizes)
                      : *arithmetic == Arithmetic::kTf32
                          ? hopper_for_tf32_backward(force, device, sizes)
                          : hopper_for_float32_backward(force, device, sizes);
    if (path) {
      return path;
    }
  }
  // Products against cuBLAS's: (64,512,512) bfloat16 7.5 against 13.6, TF32 12.2 against 20;
  // (128,1024,1024) 27 against 22 and 44 against 40, but float32 85 against 99. The tiles have 64
  // rows: at (5,1000,1000) cuBLAS is ahead, 28 against 32 in TF32 and 37 against 42 in float32.
  if (force == Force::kNone) {
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
  const int split = !clusters_available()       ? 1
                    : count > 40 && count <= 66 ? static_cast<int>(std::min<int64_t>(2, chunks))
                                                : largest_split(device, count, chunks, 0.6);
  return BackwardPath{*arithmetic, ProductTile::k64x64, split};
}

}  // namespace lltm::cuda
