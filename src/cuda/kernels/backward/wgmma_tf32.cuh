// The products of the backward in TF32 on Hopper (sm_90a). wgmma takes operands in TF32 only with K
// contiguous, but A also from registers, where it can be loaded from any layout. So in both
// products M is contiguous in A, and K in B:
//
//   [d_old_h | d_input].T = weights.T @ d_gates.T   A = weights, B = d_gates
//   d_weights = d_gates.T @ [old_h | input]         A = d_gates, B = [old_h | input] transposed
//
// Only the last operand is a copy, made by blocks of the kernel that computes d_gates. That kernel
// also rounds what it writes to TF32; wgmma would truncate it. Weights are rounded on their way
// through registers. Rows must start at 16 bytes.
//
// A pair of blocks has two tiles of the same columns, one below the other. Each block copies half
// of their B to both, because large products are bound by L2. The K of d_old_h and d_input is split
// into parts, which a small kernel adds and transposes back. A pair knows its list of tiles from
// the start, and copies the next operands while it writes a tile.
#pragma once

#include "../../pipeline/ring.cuh"
#include "../../products/wgmma_gradients.cuh"
#include "../../ptx/bulk_copy.cuh"
#include "../../ptx/cluster.cuh"
#include "../../ptx/overlap.cuh"
#include "../../ptx/shared.cuh"
#include "../../ptx/wgmma.cuh"
#include "../../reduction/gradient_parts.cuh"
#include "../../scheduler/tiles.h"

#include <cuda.h>

namespace lltm::cuda {

/// A tile has 128 rows and 256 columns, or kBatchTile columns for d_old_h and d_input.
template <int kBatchTile_>
struct Tf32GradientTile {
  static constexpr int kTileM = 128, kBatchTile = kBatchTile_, kWeightTile = 256, kChunkK = 32;
  static constexpr int kMultipliers = kGradientThreads, kGroups = kMultipliers / 128;
  static constexpr int kThreads = kMultipliers + 128;
  // A is copied in boxes of 32x32, and B in quarters of its columns, by two warps of each block.
  static constexpr int kBoxBytes = 32 * kChunkK * 4;
  static constexpr int kBytesA = kTileM / 32 * kBoxBytes, kBytesB = kWeightTile * kChunkK * 4;
  static constexpr int kSlotsA = 6, kSlotsB = 4;
  static constexpr int kOffsetB = kSlotsA * kBytesA;
  static constexpr int kBarrierOffset = kOffsetB + kSlotsB * kBytesB;
  static constexpr int kSharedBytes = kBarrierOffset + (kSlotsA + kSlotsB) * 16;
};

struct Tf32Schedule {
  int pairs;
  // Of [d_old_h | d_input].T: pairs of rows of tiles, columns of tiles.
  int state_rows, state_columns, state_chunks, parts, state_units;
  int weight_columns, weight_chunks, weight_units;
  // The first `busy` pairs have one more unit of d_old_h and d_input than the others. Together they
  // have weights_of_busy units of d_weights; the others have the rest.
  int busy, weights_of_busy;

  template <typename Tile, typename Do>
  __device__ __forceinline__ void for_each_unit(int pair, int rank, const Do& work) const {
#pragma unroll 1
    for (int i = pair; i < state_units; i += pairs) {
      const int row = i / state_columns % state_rows * 2 + rank, column = i % state_columns;
      GradientUnit unit{};
      unit.row = row * Tile::kTileM;
      unit.column = column * Tile::kBatchTile;
      unit.tile = row * state_columns + column;
      unit.part = i / state_columns / state_rows;
      unit.first_chunk = first_chunk(unit.part);
      unit.chunks = first_chunk(unit.part + 1) - unit.first_chunk;
      work(unit);
    }
#pragma unroll 1
    for (int i = first_weights(pair); i < first_weights(pair + 1); ++i) {
      GradientUnit unit{};
      unit.of_weights = true;
      unit.row = (i / weight_columns * 2 + rank) * Tile::kTileM;
      unit.column = i % weight_columns * Tile::kWeightTile;
      unit.chunks = weight_chunks;
      work(unit);
    }
  }

 private:
  __device__ __forceinline__ int first_chunk(int part) const {
    return static_cast<int>(int64_t(part) * state_chunks / parts);
  }
  __device__ __forceinline__ int first_weights(int pair) const {
    return static_cast<int>(pair < busy ? int64_t(pair) * weights_of_busy / busy
                                        : weights_of_busy + int64_t(pair - busy) *
                                                                (weight_units - weights_of_busy) /
                                                                (pairs - busy));
  }
};

struct Tf32GradientArguments {
  CUtensorMap weights, gate_rows;    // A and B of d_old_h and d_input
  CUtensorMap gate_columns, inputs;  // those of d_weights
  float4* parts;
  float* d_weights;
  int64_t d_weights_rows, d_weights_columns;
  Tf32Schedule schedule;
};

// Writes four elements of a row from `column` on, except those outside the matrix. If `columns` is
// a multiple of four, all of them are outside or none.
__device__ __forceinline__ void write_four(float* row,
                                           int64_t column,
                                           int64_t columns,
                                           float4 four) {
  if (columns % 4 == 0) {
    if (column < columns) {
      *reinterpret_cast<float4*>(row + column) = four;
    }
  } else {
    const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (column + i < columns) {
        row[column + i] = values[i];
      }
    }
  }
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    backward_wgmma_tf32_kernel(const __grid_constant__ Tf32GradientArguments arguments) {
#if defined(LLTM_HOPPER)
  extern __shared__ __align__(1024) unsigned char shared[];
  const Tf32Schedule& schedule = arguments.schedule;
  const int pair = static_cast<int>(cluster_index()), rank = cluster_rank();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const uint32_t base = shared_address(shared);
  Ring<Tile::kSlotsA, Tile::kBytesA> a_ring(base, base + Tile::kBarrierOffset);
  Ring<Tile::kSlotsB, Tile::kBytesB> b_ring(base + Tile::kOffsetB,
                                            base + Tile::kBarrierOffset + Tile::kSlotsA * 16);
  if (thread == 0) {
    a_ring.prepare(2, Tile::kMultipliers / 32);  // two warps copy, all others read
    b_ring.prepare(2, 2 * Tile::kGroups);        // warpgroups of both blocks
    fence_barriers();
  }
  __syncwarp();
  cluster_arrive();
  cluster_wait();

  if (thread >= Tile::kMultipliers) {
    give_registers<40>();
    // Issuing copies takes time: two warps copy A and two copy B.
    const bool of_a = warp % 4 < 2;
    const int half = warp % 2;
    if (lane == 0) {
      prefetch_map(of_a ? &arguments.weights : &arguments.gate_rows);
      prefetch_map(of_a ? &arguments.gate_columns : &arguments.inputs);
      wait_for_previous_kernel();
    }
    if (lane == 0 && of_a) {
      schedule.for_each_unit<Tile>(pair, rank, [&](const GradientUnit& unit) {
        const CUtensorMap* const map =
            unit.of_weights ? &arguments.gate_columns : &arguments.weights;
#pragma unroll 1
        for (int chunk = unit.first_chunk; chunk < unit.first_chunk + unit.chunks; ++chunk) {
          a_ring.wait_empty();
          arrive_expecting(a_ring.full(), Tile::kBytesA / 2);
#pragma unroll
          for (int i = 0; i < Tile::kTileM / 64; ++i) {
            const int box = half * (Tile::kTileM / 64) + i;
            copy_box_2d(a_ring.data() + box * Tile::kBoxBytes,
                        map,
                        unit.row + box * 32,
                        chunk * Tile::kChunkK,
                        a_ring.full());
          }
          a_ring.advance();
        }
      });
    } else if (lane == 0) {
      schedule.for_each_unit<Tile>(pair, rank, [&](const GradientUnit& unit) {
        const CUtensorMap* const map = unit.of_weights ? &arguments.inputs : &arguments.gate_rows;
        const int columns = (unit.of_weights ? Tile::kWeightTile : Tile::kBatchTile) / 4;
        const int first = (rank * 2 + half) * columns;
#pragma unroll 1
        for (int chunk = unit.first_chunk; chunk < unit.first_chunk + unit.chunks; ++chunk) {
          b_ring.wait_empty();
          // This warp's quarter, and that of the other block's warp.
          arrive_expecting(b_ring.full(), 2 * columns * Tile::kChunkK * 4);
          copy_box_2d(b_ring.data() + first * Tile::kChunkK * 4,
                      map,
                      chunk * Tile::kChunkK,
                      unit.column + first,
                      b_ring.full(),
                      0b11);
          b_ring.advance();
        }
      });
    }
    __syncwarp();
  } else {
    take_registers<232>();
    const uint32_t own_a = Tf32GradientProduct::fragment_offset(warp, lane);
    wait_for_previous_kernel();
    // sum = the product over the next chunks. A of a chunk is loaded while the previous chunk is
    // multiplied.
    const auto multiply = [&](auto& sum, auto rounds, int chunks) {
      clear(sum);
      uint32_t a[2][4][4];
      const auto load = [&](uint32_t(&to)[4][4]) {
        a_ring.wait_full();
        Tf32GradientProduct::load<decltype(rounds)::value>(to, a_ring.data() + own_a);
        __syncwarp();
        if (lane == 0) {
          arrive(a_ring.empty());
        }
        a_ring.advance();
      };
      uint32_t empty = 0;  // the barrier of the previous chunk
      const auto release = [&] {
        if (thread % 128 < 2) {
          arrive_in_cluster(address_in_block(empty, thread % 128));
        }
      };
      const auto multiply_chunk = [&](int chunk, uint32_t(&current)[4][4], uint32_t(&next)[4][4]) {
        b_ring.wait_full();
        const uint64_t b = describe_matrix(b_ring.data());
        fence_products();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          multiply_group_tf32<false>(sum, current[step], b + step * 2);
        }
        commit_products();
        // The products of one chunk stay in flight while those of the next one start.
        wait_products<1>();
        keep_until_here(next);
        if (chunk > 0) {
          release();
        }
        empty = b_ring.empty();
        b_ring.advance();
        if (chunk + 1 < chunks) {
          load(next);
        }
      };
      load(a[0]);
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; chunk += 2) {
        multiply_chunk(chunk, a[0], a[1]);
        if (chunk + 1 < chunks) {
          multiply_chunk(chunk + 1, a[1], a[0]);
        }
      }
      wait_products<0>();
      keep_behind(sum);
      keep_until_here(a[0]);
      keep_until_here(a[1]);
      release();
    };

    schedule.for_each_unit<Tile>(pair, rank, [&](const GradientUnit& unit) {
      if (unit.of_weights) {
        float sum[Tile::kWeightTile / 2];
        multiply(sum, std::false_type{}, unit.chunks);
        const int64_t columns = arguments.d_weights_columns;
#pragma unroll
        for (int below = 0; below < 2; ++below) {
          const int64_t row = unit.row + Tf32GradientProduct::row(warp, lane / 4 + below * 8);
          if (row < arguments.d_weights_rows) {
            float* const to = arguments.d_weights + row * columns;
#pragma unroll
            for (int n = 0; n < Tile::kWeightTile / 16; ++n) {
              // Four consecutive columns: see row_of_transposed_column.
              const float* const from = sum + n * 8 + below * 2;
              write_four(to,
                         unit.column + n * 16 + lane % 4 * 4,
                         columns,
                         make_float4(from[0], from[1], from[4], from[5]));
            }
          }
        }
      } else {
        float sum[Tile::kBatchTile / 2];
        multiply(sum, std::true_type{}, unit.chunks);
        write_part(arguments.parts +
                       (int64_t(unit.tile) * schedule.parts + unit.part) *
                           (Tile::kBatchTile / 8 * Tile::kMultipliers) +
                       thread,
                   sum);
      }
      __syncwarp();
    });
  }
  // No block exits while the other one may still write to it or arrive at its barriers.
  cluster_arrive();
  cluster_wait();
#else
  trap_wrong_image();
#endif
}

// Computes d_old_h and d_input from the parts of their sums, which are stored as the threads held
// them.
struct Tf32PartsArguments {
  const float4* parts;
  int count, tile_columns;
  int64_t batch, h, input;  // the columns of each that are wanted
  float *d_old_h, *d_input;
};

template <typename Tile>
__global__ void __launch_bounds__(Tile::kMultipliers)
    add_tf32_parts_kernel(const __grid_constant__ Tf32PartsArguments arguments) {
  // The float4s of a tile per thread, and how many of them a block adds: each is eight rows of the
  // batch.
  constexpr int kFours = Tile::kBatchTile / 8, kFoursABlock = 2, kRows = 8 * kFoursABlock;
  constexpr int kBlocksATile = kFours / kFoursABlock;
  __shared__ __align__(16) float sums[kRows][Tile::kTileM + 4];
  const int tile = static_cast<int>(blockIdx.x) / kBlocksATile;
  const int first_four = static_cast<int>(blockIdx.x) % kBlocksATile * kFoursABlock;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  wait_for_previous_kernel();
  float4 sum[kFoursABlock] = {};
  const float4* from =
      arguments.parts +
      (int64_t(tile) * arguments.count * kFours + first_four) * Tile::kMultipliers + thread;
#pragma unroll 4
  for (int part = 0; part < arguments.count; ++part) {
#pragma unroll
    for (int i = 0; i < kFoursABlock; ++i) {
      add(sum[i], __ldcg(from + i * Tile::kMultipliers));
    }
    from += kFours * Tile::kMultipliers;
  }
  const int m = Tf32GradientProduct::row(thread / 32, lane / 4),
            m_below = Tf32GradientProduct::row(thread / 32, lane / 4 + 8);
#pragma unroll
  for (int i = 0; i < kFoursABlock; ++i) {
    const int n = i * 8 + lane % 4 * 2;
    sums[n][m] = sum[i].x;
    sums[n + 1][m] = sum[i].y;
    sums[n][m_below] = sum[i].z;
    sums[n + 1][m_below] = sum[i].w;
  }
  __syncthreads();
  const int64_t first_row =
      int64_t(tile % arguments.tile_columns) * Tile::kBatchTile + first_four * 8;
  const int64_t first_column = int64_t(tile / arguments.tile_columns) * Tile::kTileM;
#pragma unroll
  for (int four = thread; four < kRows * Tile::kTileM / 4; four += Tile::kMultipliers) {
    const int n = four / (Tile::kTileM / 4), piece = four % (Tile::kTileM / 4) * 4;
    const int64_t row = first_row + n, column = first_column + piece;
    const bool of_h = column < arguments.h;
    const int64_t width = of_h ? arguments.h : arguments.input;
    if (row < arguments.batch) {
      write_four((of_h ? arguments.d_old_h : arguments.d_input) + row * width,
                 of_h ? column : column - arguments.h,
                 width,
                 *reinterpret_cast<const float4*>(&sums[n][piece]));
    }
  }
}

}  // namespace lltm::cuda
