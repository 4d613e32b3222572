// The fitted constants of the cost model, which belong to a GPU: those of all candidates alike. The
// times of a tile stand in its candidate's row (forward.cpp, sequence_gradients.cpp).
// `tools/tune/tune.py measure --ranks` measures all candidates on the GPU at hand, and `tune.py fit
// --write` fits the numbers to the times.
//
// Microseconds, and bytes per microsecond, unless a comment says otherwise. All members are
// doubles, so that a program can pass others as an array (candidates.h). The fit leaves zeros as
// they are.
#pragma once

#include "../problem.h"

namespace lltm::cuda {

template <typename T>
struct ByArithmetic {
  T float32, tf32, half;

  const T& of(Arithmetic arithmetic) const {
    return arithmetic == Arithmetic::kFloat32 ? float32
           : arithmetic == Arithmetic::kTf32  ? tf32
                                              : half;
  }
};

struct ForwardCosts {
  /// Elements of weights per microsecond, and what each row after the first adds: to the launch,
  /// and to the time of the elements, as a factor.
  struct FewRows {
    double launch, launch_a_row, rate, a_row;
  };
  /// Floating-point operations per microsecond, fewer with less than `rows` rows. In rows that
  /// start anywhere, products take `unaligned` times as long.
  struct Library {
    double launch, rate, rows, unaligned;
  };

  // What a cluster's exchange adds.
  struct {
    double once, a_rank;
  } wgmma_exchange, tiles_exchange;
  // The same in float32 by wgmma, for tiles of 8 columns, of 64 rows, and others.
  struct {
    double columns_8, rows_64, others;
  } float32_exchange;
  // What is read once, what is written, and the chunks of all blocks.
  double read_rate, write_rate, chunk_rate;
  // For weights that do not fit `cache_bytes`: what a block can read if rows start at cache lines,
  // and how many times as much is read if they do not.
  double cache_bytes, block_read_rate, read_across_lines;
  // Factors for boxes of states whose rows span two cache lines: on their bytes, and on the time of
  // a chunk.
  double states_across_lines, chunk_across_lines;
  // The additional time of a block that writes 64 rows that start anywhere, and the same per hidden
  // column: from the sums of 16 bits and TF32, and from those of three TF32 products.
  struct {
    double block, column;
  } unaligned, float32_unaligned;
  // A chunk by mma.sync relative to 16 bits: in float32 for tiles of 8 columns, of 64 rows, and
  // others; and in TF32.
  struct {
    double float32_columns_8, float32_rows_64, float32, tf32;
  } arithmetic;
  struct {
    FewRows floats, halves, unaligned;  // unaligned: one element at a time, of any size
  } few_rows, lstm_few_rows;
  struct {
    ByArithmetic<Library> in;
    // Copies of the operands; what is read and written by the pointwise kernel; the weights in
    // aligned rows, and in rows that start anywhere, which are read `unaligned_reads` times if
    // there are more than two. An LSTM has a product more, and no copies.
    double copy_rate, rate, weights_rate, lstm_launch;
    double unaligned_launch, unaligned_weights_rate, unaligned_reads;
  } library;
};

/// The forward as a step of a sequence, as far as it differs.
struct StepCosts {
  /// What more waves than one add, by the share of a wave that is used and in all.
  struct Waves {
    double used, whole;
  };
  struct Shared {
    double exchange, exchange_a_rank;  // within a cluster
    double write_rate;
    double early_start;                    // of input that is multiplied ahead
    double unaligned, unaligned_a_column;  // of 64 rows that start anywhere
    Waves waves, waves_of_clusters;
  };

  double chunk_rate;  // of 16 bits and TF32
  // Weights of more than cache_bytes are read from memory.
  double cache_bytes, memory_rate;
  double z_x_rate;  // of z_x, which an LSTM's steps and some of a GRU's read
  Shared shared, float32_shared;
  struct {
    double launch, rate, a_row, memory_rate;
  } few_rows;
  // The products of h and of input are written and read in float32, a gate's element in `element`.
  // No step overlaps another, which takes `alone` times as long.
  struct {
    double launch, element, alone;
  } library;
};

/// backward_wgmma's products.
struct GradientCosts {
  /// `launch` for the kernel as a whole; for each product, a chunk of K of a tile and the rest of a
  /// tile; `sums` for the kernel that adds the parts, plus `sums_megabyte` per megabyte of them;
  /// `megabyte` per megabyte of weights, which are read and whose gradient is written. Where the
  /// rows of the results start anywhere, TMA cannot write them: `unaligned_tile` is added per tile
  /// of 256 columns of d_weights, and `unaligned_megabyte` per megabyte.
  struct Tiles {
    double launch, state_chunk, weight_chunk, state_tile, weight_tile;
    double sums, sums_megabyte, megabyte, unaligned_tile, unaligned_megabyte;
  };
  Tiles columns_64_64, columns_64_256, columns_128_256, columns_256_256;  // of state and weights
  double exchange[4];  // of sums among 1, 2, 4 and 8 ranks
};

struct BackwardCosts {
  /// A group is 16 rows of the weights of each gate.
  struct FewRows {
    double launch, group, group_a_row, rate;
  };
  /// A chunk of K, the rest of a tile of either product, and what a tile whose K ranks share takes
  /// longer.
  struct Float32Tile {
    double chunk, state_tile, weight_tile, exchange;
  };
  /// A chunk of K and the rest of a tile, of 64x64 and 128x128.
  struct Tiles {
    double launch, small_chunk, small_rest, large_chunk, large_rest;
  };
  /// Floating-point operations per microsecond, with the columns rounded up to tiles of 64; the
  /// bytes of weights and of d_gates. Where rows start anywhere, the products take `unaligned`
  /// times as long, the weights are read twice, and `unaligned_launch` is added.
  struct Library {
    double launch, rate, weights_rate, gates_rate, unaligned, unaligned_launch;
  };

  double gate_gradients_rate;  // of the kernel that computes d_gates: ten numbers per element
  struct {
    FewRows floats, halves;
    double unaligned;
  } few_rows;
  struct {
    double launch;
    Float32Tile tile_64x96, tile_128x96;
    double sum, sum_rate;  // the kernel that adds the parts of d_weights, and reading them
  } wgmma_float32;
  struct {
    GradientCosts tf32, half;
  } wgmma;
  ByArithmetic<Tiles> tiles;
  ByArithmetic<Library> library;
};

/// A step of a sequence's backward.
struct SequenceBackwardCosts {
  struct Library {
    double launch, rate, read_rate, element, unaligned;
  };

  double launch, chunk_rate;  // the chunks of all blocks
  // By wgmma, weights of more than cache_bytes are read from memory.
  double cache_bytes, memory_rate, beside_memory;
  struct {
    double rows;           // with fewer, tiles are not full
    double beside_others;  // its steps do not overlap, and take this many times as long
    ByArithmetic<Library> in;
  } library;
};

struct Costs {
  // A launch that packs, and the bytes that it reads and writes.
  struct {
    double launch, rate;

    double time(double bytes) const { return launch + 2 * bytes / rate; }
  } packing;
  ForwardCosts forward;
  StepCosts step;
  BackwardCosts backward;
  SequenceBackwardCosts sequence_backward;
};

// Defines a constant, and its initializer as a text, from which programs know the names.
#define LLTM_COSTS(name, ...)              \
  inline constexpr Costs name __VA_ARGS__; \
  inline constexpr char name##Text[] = #__VA_ARGS__

// clang-format off
// NVIDIA H200, 2026-11-25, and an LSTM's single step and its steps' input 2026-11-28; steps in
// float32, of an LSTM, and of the backward by wgmma: NVIDIA H100, 2026-11-27 and -28; replaying
// captured graphs.
LLTM_COSTS(kCosts, {
    .packing = {.launch = 1.47, .rate = 4.2e6},
    .forward = {
        .wgmma_exchange = {.once = 0.0699, .a_rank = 0.0337},
        .tiles_exchange = {.once = 0.159, .a_rank = 0.0642},
        .float32_exchange = {.columns_8 = 0.447, .rows_64 = 0.972, .others = 2.57},
        .read_rate = 4.07e6, .write_rate = 3.05e6, .chunk_rate = 9.83e6,
        .cache_bytes = 31.1e6, .block_read_rate = 3.72e4, .read_across_lines = 1.2,
        .states_across_lines = 1.39, .chunk_across_lines = 1.2,
        .unaligned = {.block = 0.366, .column = 0.028},
        .float32_unaligned = {.block = 0.727, .column = 0.0186},
        .arithmetic = {.float32_columns_8 = 1.12, .float32_rows_64 = 1.69, .float32 = 1.89,
                       .tf32 = 1.41},
        .few_rows = {
            .floats = {.launch = 2.4, .launch_a_row = 0.1, .rate = 2.17e6, .a_row = 0.19},
            .halves = {.launch = 2.5, .launch_a_row = 0.101, .rate = 3.39e6, .a_row = 0.298},
            .unaligned = {.launch = 2.36, .launch_a_row = 0.155, .rate = 1.76e6, .a_row = 0.176}},
        .lstm_few_rows = {
            .floats = {.launch = 2.65, .launch_a_row = 0.528, .rate = 2.48e6, .a_row = 0.2},
            .halves = {.launch = 2.75, .launch_a_row = 0.595, .rate = 3.54e6, .a_row = 0.296},
            .unaligned = {.launch = 2.26, .launch_a_row = 0.651, .rate = 1.65e6, .a_row = 0.183}},
        .library = {
            .in = {.float32 = {.launch = 6, .rate = 4.29e7, .rows = 300, .unaligned = 1},
                   .tf32 = {.launch = 6.76, .rate = 3.4e8, .rows = 180, .unaligned = 4},
                   .half = {.launch = 4.84, .rate = 6.71e8, .rows = 80, .unaligned = 6}},
            .copy_rate = 2.85e6, .rate = 4.8e6, .weights_rate = 4.46e6, .lstm_launch = 3.81,
            .unaligned_launch = 2, .unaligned_weights_rate = 3.85e6, .unaligned_reads = 3}},
    .step = {
        .chunk_rate = 8.44e6, .cache_bytes = 40e6, .memory_rate = 2.4e6, .z_x_rate = 1.2e6,
        .shared = {.exchange = 0.0716, .exchange_a_rank = 0.0458, .write_rate = 1.59e6,
                   .early_start = 1.85, .unaligned = 1.17, .unaligned_a_column = 0.0217,
                   .waves = {.used = 0.48, .whole = 0.236},
                   .waves_of_clusters = {.used = 0.386, .whole = 0.493}},
        .float32_shared = {.exchange = 0, .exchange_a_rank = 0.0274, .write_rate = 3.01e6,
                           .early_start = 2.27, .unaligned = 1.13, .unaligned_a_column = 0.0607,
                           .waves = {.used = 0.332, .whole = 0.742},
                           .waves_of_clusters = {.used = 0.409, .whole = 0.669}},
        .few_rows = {.launch = 2.3, .rate = 11.1e6, .a_row = 0.065, .memory_rate = 3.5e6},
        .library = {.launch = 5, .element = 8.8e-6, .alone = 1.2}},
    .backward = {
        .gate_gradients_rate = 2.5e6,
        .few_rows = {
            .floats = {.launch = 2.84, .group = 0.312, .group_a_row = 0.080, .rate = 3.6e6},
            .halves = {.launch = 3.0, .group = 0.082, .group_a_row = 0.112, .rate = 3.4e6},
            .unaligned = 1.39},
        .wgmma_float32 = {
            .launch = 3.56,
            .tile_64x96 = {.chunk = 0.555, .state_tile = 0.662, .weight_tile = 1.1,
                           .exchange = 1.2},
            .tile_128x96 = {.chunk = 0.755, .state_tile = 1.34, .weight_tile = 1.91,
                            .exchange = 2.35},
            .sum = 1.24, .sum_rate = 6.95e6},
        .wgmma = {
            .tf32 = {
                .columns_64_64 = {
                    .launch = 1.83, .state_chunk = 0.489, .weight_chunk = 0.464, .state_tile = 2.56,
                    .weight_tile = 3.42, .sums = 0.0227, .sums_megabyte = 0.0605, .megabyte = 0.283,
                    .unaligned_tile = 2.94, .unaligned_megabyte = 0.229},
                .columns_64_256 = {
                    .launch = 3.04, .state_chunk = 0.291, .weight_chunk = 0.348, .state_tile = 0.327,
                    .weight_tile = 3.95, .sums = 0.688, .sums_megabyte = 2.2, .megabyte = 0.12,
                    .unaligned_tile = 0.742, .unaligned_megabyte = 0.181},
                .columns_128_256 = {
                    .launch = 3.39, .state_chunk = 0.364, .weight_chunk = 0.42, .state_tile = 2.11,
                    .weight_tile = 3.62, .sums = 1.15, .sums_megabyte = 0.376, .megabyte = 0.21,
                    .unaligned_tile = 1.14, .unaligned_megabyte = 0.242},
                .columns_256_256 = {
                    .launch = 4.35, .state_chunk = 0.524, .weight_chunk = 0.465, .state_tile = 4.21,
                    .weight_tile = 4.63, .sums = 0.00923, .sums_megabyte = 0.246, .megabyte = 0.145,
                    .unaligned_tile = 1.47, .unaligned_megabyte = 0.287},
                .exchange = {0.431, 0.0162, 0.0477, 0.522}},
            .half = {
                .columns_64_64 = {
                    .launch = 0.95, .state_chunk = 0.512, .weight_chunk = 0.531, .state_tile = 2.16,
                    .weight_tile = 1.99, .sums = 0, .sums_megabyte = 0, .megabyte = 0.259,
                    .unaligned_tile = 2.77, .unaligned_megabyte = 0.0795},
                .columns_64_256 = {
                    .launch = 4.31, .state_chunk = 0.177, .weight_chunk = 0.255, .state_tile = 0.123,
                    .weight_tile = 0.948, .sums = 0.771, .sums_megabyte = 1.14, .megabyte = 0.268,
                    .unaligned_tile = 1.99, .unaligned_megabyte = 0.547},
                .columns_128_256 = {
                    .launch = 2.32, .state_chunk = 0.357, .weight_chunk = 0.463, .state_tile = 0.941,
                    .weight_tile = 2.63, .sums = 1.3, .sums_megabyte = 0.515, .megabyte = 0.0299,
                    .unaligned_tile = 2.89, .unaligned_megabyte = 0.414},
                .columns_256_256 = {
                    .launch = 2.26, .state_chunk = 0.539, .weight_chunk = 0.525, .state_tile = 3.73,
                    .weight_tile = 1.74, .sums = 1.95, .sums_megabyte = 0.477, .megabyte = 0,
                    .unaligned_tile = 3.16, .unaligned_megabyte = 0.306},
                .exchange = {0.0321, 1.64, 1.14, 1.43}}},
        .tiles = {
            .float32 = {.launch = 0.75, .small_chunk = 1.6, .small_rest = 2.5,
                        .large_chunk = 2.37, .large_rest = 7.87},
            .tf32 = {.launch = 1.64, .small_chunk = 0.806, .small_rest = 2.23,
                     .large_chunk = 1.07, .large_rest = 3.23},
            .half = {.launch = 2.37, .small_chunk = 0.725, .small_rest = 1.61,
                     .large_chunk = 1.11, .large_rest = 0.22}},
        .library = {
            .float32 = {.launch = 23.4, .rate = 42e6, .weights_rate = 4.5e6,
                        .gates_rate = 7.5e6, .unaligned = 1.02, .unaligned_launch = 0},
            .tf32 = {.launch = 23.8, .rate = 2.07e8, .weights_rate = 5e6,
                     .gates_rate = 1.1e6, .unaligned = 2.16, .unaligned_launch = 1.5},
            .half = {.launch = 13.9, .rate = 485e6, .weights_rate = 3.65e6,
                     .gates_rate = 20e6, .unaligned = 4.1, .unaligned_launch = 8.6}}},
    .sequence_backward = {
        .launch = 1.96, .chunk_rate = 4.46e6,
        .cache_bytes = 40e6, .memory_rate = 2.2e6, .beside_memory = 4,
        .library = {
            .rows = 78, .beside_others = 1.15,
            .in = {
                .float32 = {.launch = 7.39, .rate = 36.4e6, .read_rate = 1.96e6,
                            .element = 1.96e-5, .unaligned = 1},
                .tf32 = {.launch = 6.9, .rate = 128e6, .read_rate = 4.56e6,
                         .element = 1.49e-5, .unaligned = 2.05},
                .half = {.launch = 5.33, .rate = 256e6, .read_rate = 3.62e6,
                         .element = 1.05e-5, .unaligned = 4.13}}}},
});
// clang-format on

#undef LLTM_COSTS

}  // namespace lltm::cuda
