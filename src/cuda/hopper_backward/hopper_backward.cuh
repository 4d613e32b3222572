// The products of the backward for 16-bit elements by Hopper's own instructions (sm_90a), in one
// launch: d_old_h and d_input are tiles of d_gates @ weights, d_weights' two column ranges tiles of
// d_gates.T @ old_h and d_gates.T @ input. Rows have to start at 16 bytes.
//
// Two blocks, a pair, have two tiles of 128x256 of the same columns, one below the other: each
// copies half of what both need of the right operand to both, as L2 is what bounds large products.
// Where d_old_h has one row of tiles, the pair has two parts of a tile's K. Wherever K is cut, a
// small kernel adds up the parts afterwards. A pair has a list of tiles that is known from the
// start; what comes next is copied while a tile is written.
#pragma once

#include "../problem.h"
#include "../ptx/barrier.cuh"
#include "../ptx/bulk_copy.cuh"
#include "../ptx/cluster.cuh"
#include "../ptx/overlap.cuh"
#include "../ptx/shared.cuh"
#include "../ptx/wgmma.cuh"
#include "../runtime/launch.cuh"
#include "../scheduler/tiles.h"
#include "../tile/elements.cuh"
#include "../tile/vectors.cuh"
#include "hopper_backward_boxes.cuh"

namespace lltm::cuda {

/// What a pair of blocks does at a time.
struct BackwardUnit {
  bool of_weights, of_h, shares_columns;
  int row, column;  // the first of the tile of this block
  int first_chunk, chunks;
  int tile, part;  // of d_old_h and d_input
};

struct BackwardSchedule {
  int pairs;
  // Tiles of d_old_h, then of d_input; rows of tiles in pairs where there is more than one.
  int state_columns_h, state_columns, state_rows;
  bool state_pairs_rows;
  int parts, chunks_a_part;
  int state_units;
  int weight_columns_h, weight_columns, weight_chunks, weight_units;
  // The first `busy` pairs have one unit of d_old_h and d_input more than the others, and
  // weights_if_busy of d_weights; the others weights_else, or one more.
  int busy, weights_if_busy, weights_else, one_more;

  __device__ __forceinline__ int first_weights(int pair) const {
    const int other = pair - busy;
    return other < 0 ? pair * weights_if_busy
                     : busy * weights_if_busy + other * weights_else + min(other, one_more);
  }

  __device__ __forceinline__ BackwardUnit state_unit(int index, int rank) const {
    BackwardUnit unit{};
    const int column = index % state_columns;
    const int rest = index / state_columns;
    const int rows = state_pairs_rows ? (state_rows + 1) / 2 : state_rows;
    const int row = state_pairs_rows ? rest % rows * 2 + rank : rest % rows;
    unit.part = state_pairs_rows ? rest / rows : rest / rows * 2 + rank;
    unit.of_h = column < state_columns_h;
    unit.shares_columns = state_pairs_rows;
    unit.row = row * 128;
    unit.column = (unit.of_h ? column : column - state_columns_h) * 256;
    unit.first_chunk = unit.part * chunks_a_part;
    unit.chunks = chunks_a_part;
    unit.tile = row * state_columns + column;
    return unit;
  }

  __device__ __forceinline__ BackwardUnit weight_unit(int index, int rank) const {
    BackwardUnit unit{};
    const int column = index % weight_columns;
    unit.of_weights = true;
    unit.of_h = column < weight_columns_h;
    unit.shares_columns = true;
    unit.row = (index / weight_columns * 2 + rank) * 128;
    unit.column = (unit.of_h ? column : column - weight_columns_h) * 256;
    unit.chunks = weight_chunks;
    return unit;
  }

  template <typename Do>
  __device__ __forceinline__ void for_each_unit(int pair, int rank, const Do& work) const {
    const int first = first_weights(pair), state = (state_units - pair + pairs - 1) / pairs;
    const int count = state + first_weights(pair + 1) - first;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      work(i < state ? state_unit(pair + i * pairs, rank) : weight_unit(first + i - state, rank));
    }
  }
};

struct HopperBackwardArguments {
  BackwardMaps maps;
  float4* parts;
  BackwardSchedule schedule;
};

struct HopperBackward {
  static constexpr int kTileM = 128, kTileN = 256, kChunkK = 64, kStages = 4;
  static constexpr int kGroups = 2, kMultipliers = 128 * kGroups, kThreads = kMultipliers + 128;
  static constexpr int kBoxesA = kTileM / kBoxSize, kBoxesB = kTileN / kBoxSize;
  static constexpr int kStageBytes = (kBoxesA + kBoxesB) * kBoxBytes;
  static constexpr int kResultOffset = kStages * kStageBytes;
  static constexpr int kResultBytes = kGroups * 2 * kBoxBytes;
  static constexpr int kBarrierOffset = kResultOffset + kResultBytes;
  static constexpr int kHeldOffset = kBarrierOffset + kStages * 16;
  static constexpr int kSharedBytes = kHeldOffset + kStages * 8;
  static constexpr int kTileFloats = kTileM * kTileN;
};

template <Arithmetic kArithmetic>
__global__ void __launch_bounds__(HopperBackward::kThreads, 1)
    hopper_backward_kernel(const __grid_constant__ HopperBackwardArguments arguments) {
#if defined(LLTM_HOPPER)
  using Tile = HopperBackward;
  using Element = typename ElementOf<kArithmetic>::type;
  extern __shared__ __align__(1024) unsigned char shared[];
  const BackwardSchedule& schedule = arguments.schedule;
  const int pair = static_cast<int>(cluster_index()), rank = cluster_rank();
  const int thread = static_cast<int>(threadIdx.x);
  const uint32_t base = shared_address(shared);
  const auto full = [&](int slot) { return base + Tile::kBarrierOffset + slot * 16; };
  const auto empty = [&](int slot) { return full(slot) + 8; };
  if (thread == 0) {
    for (int slot = 0; slot < Tile::kStages; ++slot) {
      init_barrier(full(slot), 1);
      init_barrier(empty(slot), 2 * Tile::kGroups);  // of both blocks
    }
    fence_barriers();
  }
  __syncwarp();
  cluster_arrive();
  cluster_wait();

  if (thread >= Tile::kMultipliers) {
    give_registers<40>();
    if (thread == Tile::kMultipliers) {
      prefetch_map(&arguments.maps.d_gates);
      prefetch_map(&arguments.maps.weights_h);
      wait_for_previous_kernel();
      // The row and the chunk of d_gates.T that a slot holds: tiles that follow each other are of
      // the same rows, so that where a tile has one, two or four chunks, they stay.
      auto* const held = reinterpret_cast<int2*>(shared + Tile::kHeldOffset);
      for (int i = 0; i < Tile::kStages; ++i) {
        held[i] = make_int2(-1, -1);
      }
      int slot = 0;
      uint32_t parity = 1;  // a fresh barrier has completed the phase before its first
      schedule.for_each_unit(pair, rank, [&](const BackwardUnit& unit) {
        const BackwardMaps& maps = arguments.maps;
        const CUtensorMap* const right = unit.of_weights ? unit.of_h ? &maps.old_h : &maps.input
                                         : unit.of_h     ? &maps.weights_h
                                                         : &maps.weights_input;
        for (int chunk = 0; chunk < unit.chunks; ++chunk) {
          wait_phase(empty(slot), parity);
          const bool holds = unit.of_weights && held[slot].x == unit.row && held[slot].y == chunk;
          arrive_expecting(full(slot),
                           (holds ? Tile::kBoxesB : Tile::kBoxesA + Tile::kBoxesB) * kBoxBytes);
          const int k = (unit.first_chunk + chunk) * Tile::kChunkK;
          const uint32_t to = base + slot * Tile::kStageBytes;
          const uint32_t to_b = to + Tile::kBoxesA * kBoxBytes;
          if (!holds) {
            held[slot] = unit.of_weights ? make_int2(unit.row, chunk) : make_int2(-1, -1);
#pragma unroll
            for (int box = 0; box < Tile::kBoxesA; ++box) {
              const int m = unit.row + box * kBoxSize;
              copy_box_2d(to + box * kBoxBytes,
                          &maps.d_gates,
                          unit.of_weights ? m : k,
                          unit.of_weights ? k : m,
                          full(slot));
            }
          }
          if (unit.shares_columns) {
#pragma unroll
            for (int i = 0; i < Tile::kBoxesB / 2; ++i) {
              const int box = rank * (Tile::kBoxesB / 2) + i;
              copy_box_2d(
                  to_b + box * kBoxBytes, right, unit.column + box * kBoxSize, k, full(slot), 0b11);
            }
          } else {
#pragma unroll
            for (int box = 0; box < Tile::kBoxesB; ++box) {
              copy_box_2d(
                  to_b + box * kBoxBytes, right, unit.column + box * kBoxSize, k, full(slot));
            }
          }
          if (++slot == Tile::kStages) {
            slot = 0;
            parity ^= 1;
          }
        }
      });
    }
    __syncwarp();
  } else {
    take_registers<232>();
    const int group = thread / 128;
    wait_for_previous_kernel();
    int slot = 0;
    uint32_t parity = 0;
    const auto release = [&](int which) {
      if (thread % 128 < 2) {
        arrive_in_cluster(address_in_block(empty(which), thread % 128));
      }
    };
    schedule.for_each_unit(pair, rank, [&](const BackwardUnit& unit) {
      float sum[128];
#pragma unroll
      for (float& value : sum) {
        value = 0;
      }
      int previous = 0;
      const auto run = [&](auto transposed) {
#pragma unroll 1
        for (int chunk = 0; chunk < unit.chunks; ++chunk) {
          wait_phase(full(slot), parity);
          const uint32_t a = base + slot * Tile::kStageBytes;
          fence_products();
          multiply_boxes<kArithmetic, decltype(transposed)::value>(
              sum, a + group * kBoxBytes, a + Tile::kBoxesA * kBoxBytes);
          commit_products();
          // One chunk's products stay under way while the next one's begin.
          wait_products<1>();
          if (chunk > 0) {
            release(previous);
          }
          previous = slot;
          if (++slot == Tile::kStages) {
            slot = 0;
            parity ^= 1;
          }
        }
      };
      if (unit.of_weights) {
        run(std::true_type{});
      } else {
        run(std::false_type{});
      }
      wait_products<0>();
      keep_behind(sum);
      release(previous);

      if (!unit.of_weights && schedule.parts > 1) {
        float4* const own =
            arguments.parts +
            (int64_t(unit.tile) * schedule.parts + unit.part) * (Tile::kTileFloats / 4) + thread;
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          __stcg(own + i * Tile::kMultipliers,
                 make_float4(sum[i * 4], sum[i * 4 + 1], sum[i * 4 + 2], sum[i * 4 + 3]));
        }
        return;
      }

      const CUtensorMap* const result =
          unit.of_weights
              ? unit.of_h ? &arguments.maps.d_weights_h : &arguments.maps.d_weights_input
          : unit.of_h ? &arguments.maps.d_old_h
                      : &arguments.maps.d_input;
      const int result_offset = Tile::kResultOffset + group * 2 * kBoxBytes;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (thread % 128 == 0) {
          wait_writes_read();  // of what was here before
        }
        sync_threads_of<128>(1 + group);
        stage_boxes<Element>(shared + result_offset, sum + half * 64);
        fence_for_copies();
        sync_threads_of<128>(1 + group);
        if (thread % 128 == 0) {
#pragma unroll
          for (int box = 0; box < 2; ++box) {
            write_box_2d(base + result_offset + box * kBoxBytes,
                         result,
                         unit.column + half * 128 + box * 64,
                         unit.row + group * 64);
          }
          commit_writes();
        }
      }
    });
    if (thread % 128 == 0) {
      wait_writes();
    }
    __syncwarp();
  }
  // Nobody leaves while the other block may still write to it, or arrive at its barriers.
  cluster_arrive();
  cluster_wait();
#endif
}

// d_old_h and d_input from the parts of their sums, which lie as the threads had them.
struct AddPartsArguments {
  BackwardProblem cell;
  const float4* parts;
  int count;
  int columns_h, columns;  // tiles
};

constexpr int kAddPartsThreads = HopperBackward::kMultipliers;
constexpr int kAddPartsBlocksATile = 16;

template <Arithmetic kArithmetic>
__global__ void __launch_bounds__(kAddPartsThreads, 2)
    add_parts_kernel(const __grid_constant__ AddPartsArguments arguments) {
  using Element = typename ElementOf<kArithmetic>::type;
  constexpr int kFours = HopperBackward::kTileFloats / 4 / kAddPartsThreads;
  constexpr int kFoursABlock = kFours / kAddPartsBlocksATile;
  const BackwardProblem& p = arguments.cell;
  const int tile = static_cast<int>(blockIdx.x) / kAddPartsBlocksATile;
  const int first = static_cast<int>(blockIdx.x) % kAddPartsBlocksATile * kFoursABlock;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  wait_for_previous_kernel();
  float4 sums[kFoursABlock] = {};
  const float4* from = arguments.parts +
                       (int64_t(tile) * arguments.count * kFours + first) * kAddPartsThreads +
                       thread;
#pragma unroll 2
  for (int part = 0; part < arguments.count; ++part) {
#pragma unroll
    for (int i = 0; i < kFoursABlock; ++i) {
      const float4 four = __ldcg(from + i * kAddPartsThreads);
      sums[i].x += four.x;
      sums[i].y += four.y;
      sums[i].z += four.z;
      sums[i].w += four.w;
    }
    from += kFours * kAddPartsThreads;
  }
  const int column_tile = tile % arguments.columns;
  const bool of_h = column_tile < arguments.columns_h;
  const int64_t width = of_h ? p.state_size : p.input_features;
  const int64_t row =
      tile / arguments.columns * int64_t(HopperBackward::kTileM) + thread / 32 * 16 + lane / 4;
  Element* const to = static_cast<Element*>(of_h ? p.d_old_h : p.d_input);
#pragma unroll
  for (int i = 0; i < kFoursABlock; ++i) {
    const int64_t column =
        int64_t(of_h ? column_tile : column_tile - arguments.columns_h) * HopperBackward::kTileN +
        (first + i) * 8 + lane % 4 * 2;
    if (column < width) {  // which is even
      const float values[2][2] = {{sums[i].x, sums[i].y}, {sums[i].z, sums[i].w}};
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        if (row + below * 8 < p.batch) {
          Vector<Element, 2> two;
          assign(two.values[0], values[below][0]);
          assign(two.values[1], values[below][1]);
          write_global_vector(to + (row + below * 8) * width + column, two);
        }
      }
    }
  }
}

inline BackwardSchedule schedule_backward(const BackwardProblem& p, int parts, int pairs) {
  using Tile = HopperBackward;
  BackwardSchedule s{};
  const int columns_h = tiles_of(p.state_size, Tile::kTileN);
  const int columns_x = tiles_of(p.input_features, Tile::kTileN);
  const int chunks = tiles_of(3 * p.state_size, Tile::kChunkK);
  s.state_columns_h = p.d_old_h != nullptr ? columns_h : 0;
  s.state_columns = s.state_columns_h + (p.d_input != nullptr ? columns_x : 0);
  s.state_rows = tiles_of(p.batch, Tile::kTileM);
  s.state_pairs_rows = s.state_rows > 1;
  s.parts = parts;
  s.chunks_a_part = (chunks + parts - 1) / parts;
  s.state_units = s.state_columns *
                  (s.state_pairs_rows ? (s.state_rows + 1) / 2 * parts : s.state_rows * parts / 2);
  s.weight_columns_h = p.d_weights != nullptr ? columns_h : 0;
  s.weight_columns = p.d_weights != nullptr ? columns_h + columns_x : 0;
  s.weight_chunks = tiles_of(p.batch, Tile::kChunkK);
  s.weight_units = s.weight_columns * tiles_of(3 * p.state_size, 2 * Tile::kTileM);
  s.pairs = s.state_units + s.weight_units < pairs ? s.state_units + s.weight_units : pairs;
  if (s.pairs == 0) {
    return s;
  }
  // In chunks, what is spent on a unit, its end included.
  const double state_cost = s.chunks_a_part + (parts > 1 ? 2.0 : 1.5);
  const double weight_cost = s.weight_chunks + 1.3;
  const double average = (s.state_units * state_cost + s.weight_units * weight_cost) / s.pairs;
  s.busy = s.state_units % s.pairs;
  int if_busy = 0;
  if (s.busy > 0) {
    const double left = average - (s.state_units / s.pairs + 1) * state_cost;
    if_busy = left > 0 ? static_cast<int>(left / weight_cost + 0.5) : 0;
    if (if_busy > s.weight_units / s.busy) {
      if_busy = s.weight_units / s.busy;
    }
  }
  s.weights_if_busy = if_busy;
  const int rest = s.weight_units - s.busy * if_busy;
  s.weights_else = rest / (s.pairs - s.busy);
  s.one_more = rest % (s.pairs - s.busy);
  return s;
}

template <Arithmetic kArithmetic>
cudaError_t launch_hopper_backward_products(
    const BackwardProblem& p, int parts, int pairs, float* workspace, cudaStream_t stream) {
  HopperBackwardArguments arguments;
  arguments.schedule = schedule_backward(p, parts, pairs);
  if (arguments.schedule.pairs == 0) {
    return cudaSuccess;
  }
  if (!describe_backward(&arguments.maps, kArithmetic, p)) {
    return cudaErrorInvalidValue;
  }
  arguments.parts = reinterpret_cast<float4*>(workspace);
  const BackwardSchedule& schedule = arguments.schedule;
  const cudaError_t error = launch_in_clusters<&hopper_backward_kernel<kArithmetic>,
                                               HopperBackward::kThreads,
                                               HopperBackward::kSharedBytes,
                                               HopperBackward::kSharedBytes>(
      arguments, dim3(static_cast<unsigned>(2 * schedule.pairs)), 2, stream);
  if (error != cudaSuccess || parts == 1 || schedule.state_units == 0) {
    return error;
  }
  const AddPartsArguments sums{
      p, arguments.parts, parts, schedule.state_columns_h, schedule.state_columns};
  const int tiles = schedule.state_rows * schedule.state_columns;
  return launch_in_clusters<&add_parts_kernel<kArithmetic>, kAddPartsThreads, 0, 0>(
      sums, dim3(static_cast<unsigned>(tiles * kAddPartsBlocksATile)), 1, stream);
}

}  // namespace lltm::cuda
