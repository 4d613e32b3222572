// The forward in one launch for Hopper's own instructions (sm_90a): TMA brings the chunks of K,
// wgmma multiplies them. As forward_tiles.cuh otherwise: the same hidden columns of all three gates
// in a block, K over old_h and then over input, shared by a cluster. Rows have to start at 16
// bytes.
#pragma once

#include "../epilogue/cell_of_fragments.cuh"
#include "../epilogue/math.cuh"
#include "../problem.h"
#include "../ptx/barrier.cuh"
#include "../ptx/bulk_copy.cuh"
#include "../ptx/cluster.cuh"
#include "../ptx/overlap.cuh"
#include "../ptx/shared.cuh"
#include "../ptx/wgmma.cuh"
#include "../runtime/launch.cuh"
#include "../runtime/tensor_maps.h"
#include "../scheduler/split_of_k.h"
#include "../scheduler/tiles.h"
#include "../tile/elements.cuh"
#include "forward_kernels.h"

#include <algorithm>

namespace lltm::cuda {

struct ForwardWgmmaArguments {
  ForwardMaps maps;
  ForwardProblem cell;
  KSplit split;
  Segments chunks;  // of K
  int stage_bytes;  // what arrives a chunk: no rows beyond a small batch
};

/// A tile of kGroups * 64 rows and kHidden hidden columns. A block of kGroups times four warps
/// multiplies, one more warp starts the copies; kHelpers more threads help to finish, which is
/// bound by latency.
///
/// kRowTiles tiles of the same columns are in one cluster, beside the ranks that share their K: a
/// chunk of weights is read once for all of them.
template <Arithmetic kArithmetic_,
          int kGroups_,
          int kHidden_,
          int kStages_,
          int kHelpers_,
          int kRowTiles_ = 1>
struct WgmmaTileOf {
  static constexpr Arithmetic kArithmetic = kArithmetic_;
  static constexpr int kGroups = kGroups_, kHidden = kHidden_, kStages = kStages_;
  static constexpr int kRowTiles = kRowTiles_;
  using Element = typename ElementOf<kArithmetic>::type;
  static constexpr int kTileM = 64 * kGroups, kTileN = 3 * kHidden;
  static constexpr int kMultipliers = 128 * kGroups, kFinishers = kMultipliers + kHelpers_;
  static constexpr int kThreads = kFinishers + 32;
  static constexpr int kChunkBytes = 128, kChunkK = kChunkBytes / sizeof(Element);
  static constexpr int kBytesA = kTileM * kChunkBytes, kBytesB = kTileN * kChunkBytes;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  static_assert(kStageBytes % 1024 == 0, "the pattern of swizzled rows repeats every 1024 bytes");

  // Shared memory: the stages, a pair of barriers each and one for the sums, the sums. Those of a
  // block by itself replace the stages.
  static constexpr int kUnitBytes = unit_bytes(kHidden), kUnits = kTileM / 4;
  static constexpr int kBarrierOffset = kStages * kStageBytes;
  static constexpr int kPartsOffset = kBarrierOffset + (kStages * 16 + 8 + 127) / 128 * 128;
  static constexpr int kMaxRanks = std::min(
      kMaxSplit / kRowTiles, std::max(1, (227 * 1024 - kPartsOffset) / kUnitBytes - kUnits + 1));
  static constexpr int kBlockBytes = kPartsOffset;
  static constexpr int kClusterBytes =
      kPartsOffset + (kMaxRanks == 1 ? 0 : (kUnits + kMaxRanks - 1) * kUnitBytes);
  static_assert(kUnits * kUnitBytes <= kBarrierOffset);
};

template <Arithmetic kArithmetic, int kSums>
__device__ __forceinline__ void multiply_group(float (&sum)[kSums], uint64_t a, uint64_t b) {
  if constexpr (kArithmetic == Arithmetic::kTf32) {
    multiply_group_tf32(sum, a, b);
  } else if constexpr (kArithmetic == Arithmetic::kFloat16) {
    multiply_group_f16(sum, a, b);
  } else {
    multiply_group_bf16(sum, a, b);
  }
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    forward_wgmma_kernel(const __grid_constant__ ForwardWgmmaArguments arguments) {
#if defined(LLTM_HOPPER)
  constexpr int kStages = Tile::kStages;
  constexpr int kRowTiles = Tile::kRowTiles;
  extern __shared__ __align__(1024) unsigned char shared[];
  const ForwardProblem& p = arguments.cell;

  // In a cluster: ranks, then row tiles.
  const int ranks = arguments.split.ranks;
  const int block = cluster_rank();
  const int rank = block % ranks, row_tile = block / ranks;
  const int64_t first_row = (blockIdx.y + int64_t(gridDim.y) * blockIdx.z) * int64_t(Tile::kTileM);
  if (first_row - row_tile * Tile::kTileM >= p.batch) {
    return;  // and so does the whole cluster
  }
  const int first_hidden = static_cast<int>(cluster_index()) * Tile::kHidden;
  const int begin = arguments.split.first_chunk(rank);
  const int end = arguments.split.first_chunk(rank + 1);

  const uint32_t base = shared_address(shared);
  const auto full = [&](int slot) { return base + Tile::kBarrierOffset + slot * 16; };
  const auto empty = [&](int slot) { return full(slot) + 8; };
  const uint32_t sums_barrier = full(kStages);
  FragmentFinisher<typename Tile::Element,
                   RoundedMath,
                   4 * Tile::kGroups,
                   Tile::kHidden,
                   Tile::kFinishers>
      finisher(p, first_row, first_hidden, rank, ranks);
  if (threadIdx.x == Tile::kFinishers) {
    for (int slot = 0; slot < kStages; ++slot) {
      init_barrier(full(slot), 1);
      init_barrier(empty(slot), Tile::kGroups * kRowTiles);
    }
    init_barrier(sums_barrier, 1 + finisher.own_arrivals());
    fence_barriers();
    arrive_expecting(sums_barrier, finisher.expected_bytes());
    prefetch_map(&arguments.maps.weights_h);
    prefetch_map(&arguments.maps.old_h);
    prefetch_map(&arguments.maps.weights_input);
    prefetch_map(&arguments.maps.input);
  }
  __syncwarp();
  if (kRowTiles * ranks > 1) {
    cluster_arrive();
    cluster_wait();
  } else {
    __syncthreads();
  }
  start_next_kernel();
  wait_for_previous_kernel();

  if (threadIdx.x >= Tile::kFinishers) {
    if (threadIdx.x == Tile::kFinishers) {
      uint16_t sharing_blocks = 0;
#pragma unroll
      for (int row = 0; row < kRowTiles; ++row) {
        sharing_blocks |= 1 << (rank + ranks * row);
      }
      int slot = 0;
      uint32_t parity = 1;  // a fresh barrier has completed the phase before its first
#pragma unroll 1
      for (int chunk = begin; chunk < end; ++chunk) {
        wait_phase(empty(slot), parity);
        arrive_expecting(full(slot), arguments.stage_bytes);
        const auto piece = arguments.chunks.piece(chunk, Tile::kChunkK);
        const int k = static_cast<int>(piece.first);
        const uint32_t a = base + slot * Tile::kStageBytes, b = a + Tile::kBytesA;
        const CUtensorMap* const weights =
            &piece.of(arguments.maps.weights_h, arguments.maps.weights_input);
        const CUtensorMap* const rows = &piece.of(arguments.maps.old_h, arguments.maps.input);
        const int y = static_cast<int>(first_row);
        if constexpr (kRowTiles == 1) {
          copy_box_3d(b, weights, k, first_hidden, 0, full(slot));
        } else if (chunk % kRowTiles == row_tile) {
          copy_box_3d(b, weights, k, first_hidden, 0, full(slot), sharing_blocks);
        }
        copy_box_2d(a, rows, k, y, full(slot));
        if (++slot == kStages) {
          slot = 0;
          parity ^= 1;
        }
      }
    }
    return;
  }

  unsigned char* const parts = shared + (ranks == 1 ? 0 : Tile::kPartsOffset);
  finisher.fetch();
  if (threadIdx.x < Tile::kMultipliers) {
    float sum[Tile::kTileN / 2];
#pragma unroll
    for (float& value : sum) {
      value = 0;
    }
    const int thread = static_cast<int>(threadIdx.x) % 128;
    const uint32_t rows = static_cast<uint32_t>(threadIdx.x) / 128 * 64 * Tile::kChunkBytes;
    // Where this thread tells that a slot is free: here, and at those that copy to this block.
    uint32_t freed_barriers = empty(0);
    if constexpr (kRowTiles > 1) {
      freed_barriers = address_in_block(freed_barriers, rank + ranks * (thread % kRowTiles));
    }
    int slot = 0, previous = 0;
    uint32_t parity = 0;
#pragma unroll 1
    for (int chunk = begin; chunk < end; ++chunk) {
      wait_phase(full(slot), parity);
      const uint64_t a = describe_matrix(base + slot * Tile::kStageBytes + rows);
      const uint64_t b = describe_matrix(base + slot * Tile::kStageBytes + Tile::kBytesA);
      fence_products();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        // 32 bytes further along K, in the descriptor's units of 16.
        multiply_group<Tile::kArithmetic>(sum, a + step * 2, b + step * 2);
      }
      commit_products();
      // One chunk's products stay under way while the next one's begin.
      wait_products<1>();
      // Nobody waits for a slot that is not filled again, or is there any more.
      if (chunk > begin && chunk - 1 + kStages < end && thread < kRowTiles) {
        if constexpr (kRowTiles > 1) {
          arrive_in_cluster(freed_barriers + previous * 16);
        } else {
          arrive(freed_barriers + previous * 16);
        }
      }
      previous = slot;
      if (++slot == kStages) {
        slot = 0;
        parity ^= 1;
      }
    }
    wait_products<0>();

    if (ranks == 1) {
      // All groups are done with the stages, which the sums replace.
      sync_threads_of<1, Tile::kMultipliers>();
    }
    finisher.exchange(sum, parts, sums_barrier, [&](int to) { return block + to - rank; });
  }
  wait_phase(sums_barrier, 0);
  finisher.finish(parts);
#endif
}

template <typename Tile>
cudaError_t launch_forward_wgmma_tile(const ForwardProblem& params,
                                      int split,
                                      cudaStream_t stream) {
  const auto round_up = [](int64_t value, int64_t to) { return (value + to - 1) / to * to; };
  if (split > Tile::kMaxRanks) {
    return cudaErrorInvalidValue;
  }
  const int rows =
      params.batch < Tile::kTileM ? static_cast<int>(round_up(params.batch, 8)) : Tile::kTileM;
  ForwardWgmmaArguments arguments;
  arguments.cell = params;
  arguments.chunks = segments_of(params.state_size, params.input_features, Tile::kChunkK);
  arguments.split = split_of_k(split, arguments.chunks.pieces(), Tile::kTileM);
  arguments.stage_bytes = rows * Tile::kChunkBytes + Tile::kBytesB;
  if (!describe_forward(
          &arguments.maps, Tile::kArithmetic, params, Tile::kChunkK, rows, Tile::kHidden)) {
    return cudaErrorInvalidValue;
  }
  const int64_t columns = round_up(params.state_size, Tile::kHidden) / Tile::kHidden;
  const int64_t row_tiles =
      round_up(round_up(params.batch, Tile::kTileM) / Tile::kTileM, Tile::kRowTiles);
  const dim3 grid = grid_of_tiles(row_tiles, columns, split, Tile::kRowTiles);
  return launch_in_clusters<&forward_wgmma_kernel<Tile>,
                            Tile::kThreads,
                            Tile::kBlockBytes,
                            Tile::kClusterBytes>(
      arguments, grid, dim3(split, Tile::kRowTiles), stream);
}

template <Arithmetic kArithmetic>
cudaError_t launch_forward_wgmma(const ForwardProblem& params,
                                 WgmmaTile tile,
                                 int split,
                                 cudaStream_t stream) {
  // Stages for one block a multiprocessor, so that the next kernel's blocks, which start early, go
  // where no block of this one is; threads for an item each, of the ranks that plan.cpp chooses.
  switch (tile) {
    case WgmmaTile::k64x8:
      return launch_forward_wgmma_tile<WgmmaTileOf<kArithmetic, 1, 8, 11, 0>>(
          params, split, stream);
    case WgmmaTile::k64x24:
      return launch_forward_wgmma_tile<WgmmaTileOf<kArithmetic, 1, 24, 8, 0>>(
          params, split, stream);
    case WgmmaTile::k64x40:
      return launch_forward_wgmma_tile<WgmmaTileOf<kArithmetic, 1, 40, 7, 32>>(
          params, split, stream);
    case WgmmaTile::k64x40InPairs:
      return launch_forward_wgmma_tile<WgmmaTileOf<kArithmetic, 1, 40, 7, 192, 2>>(
          params, split, stream);
    case WgmmaTile::k128x32InPairs:
      return launch_forward_wgmma_tile<WgmmaTileOf<kArithmetic, 2, 32, 7, 0, 2>>(
          params, split, stream);
    case WgmmaTile::kCount:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace lltm::cuda
