// The products of the backward by wgmma and TMA (sm_90a), in one launch: d_old_h and d_input, which
// are one product, and d_weights (gradient_units.h). Some warps copy operands through rings of
// slots. Two warpgroups multiply, and write tiles or leave their sums for another kernel to add.
//
// - Small tiles of 128x64: the K of a tile of either product may be shared by the blocks of a
//   cluster, which exchange their sums.
// - Large tiles of 128x256 for d_weights, and of 128 x 64, 128 or 256 for the others, in pairs with
//   the same columns that share the right operand, because large products are bound by L2. K may be
//   split into parts, whose sums go to the workspace and are added by another kernel.
#pragma once

#include "../../epilogue/gradient_tile.cuh"
#include "../../pipeline/ring.cuh"
#include "../../ptx/cluster.cuh"
#include "../../ptx/overlap.cuh"
#include "../../reduction/group_sums.cuh"
#include "../../reduction/sum_parts.cuh"
#include "../../scheduler/gradient_schedule.h"

namespace lltm::cuda {

struct GradientOperandMaps {
  CUtensorMap weights, gate_rows;       // left and right of the state product
  CUtensorMap gate_columns, inputs[2];  // of the weight product; inputs[1] is that of input
};

struct GradientArguments {
  GradientOperandMaps operands;
  GradientResultMaps result_maps;
  GradientResults results;
  GradientSchedule schedule;
  float4* parts;  // of the state product's tiles, then of the weight product's
};

/// The columns of a tile of the state product and of the weight product. One kernel for all widths
/// would be slower: its mainloops share registers.
template <Arithmetic kArithmetic_, int kStateColumns_, int kWeightColumns_>
struct GradientTiling {
  static constexpr Arithmetic kArithmetic = kArithmetic_;
  using Product = GradientProduct<kArithmetic>;
  using Staging = GradientStaging<Product>;
  static constexpr int kStateColumns = kStateColumns_, kWeightColumns = kWeightColumns_;
  static constexpr bool kSharesK = kWeightColumns == 64;
  // as GradientPlan::has_large_tiles()
  static constexpr bool kDealsColumns = kArithmetic == Arithmetic::kTf32 && !kSharesK;
  static constexpr int kMulticast = kSharesK ? 1 : 2;  // ranks
  static constexpr int kBlocksPerSm = kSharesK ? 2 : 1;
  // Issuing copies takes a thread's time: for large tiles, two threads copy the left operand, half
  // of it each, and two the right one. Their warpgroup releases registers to those that multiply.
  static constexpr int kCopiers = kSharesK ? 1 : 2;  // per operand
  static constexpr int kThreads = kGradientThreads + 64 * kCopiers;

  using Copies = GradientCopies<Product, kWeightColumns, kMulticast, kCopiers>;
  // Where the left operand passes through registers, its slots are empty sooner, and more of them
  // keep more weights on their way.
  static constexpr int kLeftSlots = kSharesK ? 3 : kDealsColumns ? 5 : 4;
  using LeftRing = Ring<kLeftSlots, kGradientRows * 128>;
  using RightRing = Ring<kSharesK ? 3 : 4, kWeightColumns * 128>;
  // Behind the rings: the staging that each warpgroup writes tiles from, or sums from other ranks.
  static constexpr int kStagings = kSharesK || kDealsColumns ? 1 : 2;
  static constexpr int kRightOffset = LeftRing::kBytes;
  static constexpr int kStagingOffset = kRightOffset + RightRing::kBytes;
  static constexpr int kGroupStagingBytes = kStagings * Staging::kBytes;
  using Sums = GroupSums<kGradientThreads, kWeightColumns / 8>;
  static constexpr int kSumsBytes = kSharesK ? Sums::kBytes : 0;
  static constexpr int kBarrierOffset =
      kStagingOffset + std::max(kSumsBytes, 2 * kGroupStagingBytes);
  static constexpr int kSumsBarrier =
      kBarrierOffset + LeftRing::kBarrierBytes + RightRing::kBarrierBytes;
  static constexpr int kHeldOffset = kSumsBarrier + 16;
  static constexpr int kSharedBytes = kHeldOffset + kCopiers * kLeftSlots * 8;
};

#if defined(LLTM_HOPPER)
/// The first part of a tile in the workspace: a float4 of each thread for each eight columns. The
/// next part follows.
LLTM_DEVICE float4* first_part(const GradientArguments& arguments, bool of_weights, int tile) {
  const GradientSchedule& schedule = arguments.schedule;
  const GradientTiles& tiles = schedule.tiles(of_weights);
  return arguments.parts + (of_weights ? schedule.state.floats_of_parts() / 4 : 0) +
         int64_t(tile) * tiles.parts * (tiles.tile_columns / 8 * kGradientThreads);
}

/// The rings of the operands, in this block's shared memory.
template <typename Tile>
struct GradientRings {
  typename Tile::LeftRing left;
  typename Tile::RightRing right;

  LLTM_DEVICE explicit GradientRings(uint32_t shared)
      : left(shared, shared + Tile::kBarrierOffset),
        right(shared + Tile::kRightOffset,
              shared + Tile::kBarrierOffset + Tile::LeftRing::kBarrierBytes) {}
};

/// Starts the copies of all units' chunks, of either the left or the right operand.
template <typename Tile>
LLTM_DEVICE void copy_gradient_operands(const GradientArguments& arguments,
                                        unsigned char* shared,
                                        GradientRings<Tile> rings,
                                        int cluster,
                                        int rank,
                                        int copier) {
  using Product = typename Tile::Product;
  const GradientOperandMaps& maps = arguments.operands;
  const bool of_left = copier < Tile::kCopiers;
  copier %= Tile::kCopiers;
  if (arguments.schedule.state.units > 0) {
    prefetch_map(of_left ? &maps.weights : &maps.gate_rows);
  }
  if (arguments.schedule.weights.units > 0) {
    prefetch_map(of_left ? &maps.gate_columns : &maps.inputs[0]);
  }
  // The row and the chunk of d_gates.T that a slot holds. Consecutive tiles of d_weights have the
  // same rows, so chunks stay in their slots if a tile has as many of them as fit.
  auto* const held =
      reinterpret_cast<int2*>(shared + Tile::kHeldOffset) + copier * Tile::kLeftSlots;
  if (of_left) {
    for (int i = 0; i < Tile::kLeftSlots; ++i) {
      held[i] = make_int2(-1, -1);
    }
  }
  bool waited = false;
  arguments.schedule.for_each_unit(cluster, rank, [&](const GradientUnit& unit) {
    // The previous kernel computes d_gates and, in TF32, transposes the inputs. It has waited
    // for whatever wrote the other operands before it started this one.
    const bool there = of_left ? !unit.of_weights : unit.of_weights && Product::kWeightRowsOfK;
    if (!waited && !there) {
      wait_for_previous_kernel();
      waited = true;
    }
    if (of_left) {
      auto& ring = rings.left;
      const CUtensorMap* const map = unit.of_weights ? &maps.gate_columns : &maps.weights;
#pragma unroll 1
      for (int chunk = unit.first_chunk; chunk < unit.first_chunk + unit.chunks; ++chunk) {
        ring.wait_empty();
        int2& here = held[ring.slot()];
        const int k = chunk * Product::kChunkK;
        if (unit.of_weights && here.x == unit.row && here.y == chunk) {
          arrive(ring.full());
        } else {
          here = unit.of_weights ? make_int2(unit.row, chunk) : make_int2(-1, -1);
          Tile::Copies::copy_left(ring.data(), map, unit.row, k, copier, ring.full());
        }
        ring.advance();
      }
    } else {
      auto& ring = rings.right;
      const CUtensorMap* const map =
          unit.of_weights ? &maps.inputs[unit.second_segment] : &maps.gate_rows;
      const int columns = arguments.schedule.tiles(unit.of_weights).tile_columns;
#pragma unroll 1
      for (int chunk = unit.first_chunk; chunk < unit.first_chunk + unit.chunks; ++chunk) {
        ring.wait_empty();
        Tile::Copies::copy_right(ring.data(),
                                 map,
                                 unit.of_weights,
                                 columns,
                                 unit.column,
                                 chunk * Product::kChunkK,
                                 Tile::kMulticast > 1 ? rank : 0,
                                 copier,
                                 ring.full());
        ring.advance();
      }
    }
  });
}

/// A place in which this thread's warpgroup stages blocks of tiles.
template <typename Tile>
LLTM_DEVICE typename Tile::Staging staging_of(unsigned char* shared, int place) {
  const int group = static_cast<int>(threadIdx.x) / 128;
  return typename Tile::Staging(shared + Tile::kStagingOffset + group * Tile::kGroupStagingBytes +
                                place * Tile::Staging::kBytes);
}

/// Writes a tile of which this block has all sums.
template <typename Tile, int kColumns>
LLTM_DEVICE void write_gradient_tile(const GradientArguments& arguments,
                                     unsigned char* shared,
                                     const GradientUnit& unit,
                                     const float (&sum)[kColumns / 2]) {
  using Staging = typename Tile::Staging;
  constexpr int kBlocks = kColumns / Staging::kColumns;
  const int thread = static_cast<int>(threadIdx.x), group = thread / 128;
  const int group_row = unit.row + group * 64;
  if constexpr (Tile::kDealsColumns) {
    if (unit.of_weights) {
      const GradientResults& results = arguments.results;
      const int64_t width = results.state_size + results.input_features;
      write_dealt_columns(
          {.data = static_cast<float*>(results.d_weights.of_h) + unit.row * width + unit.column,
           .stride = width,
           .rows = 3 * results.state_size - unit.row,
           .columns = width - unit.column,
           .at_vectors = results.weight_alignment == 16},
          [](int r) { return Tile::Product::row(static_cast<int>(threadIdx.x) / 32, r); },
          sum);
      return;
    }
  }
  // TMA does not write a box that starts in front of a matrix. The box of d_input would, if a tile
  // has columns of both d_old_h and d_input.
  const int64_t h = arguments.results.state_size;
  const bool has_both = group_row < h && group_row + 64 > h;
  const bool by_tma =
      arguments.results.alignment(unit.of_weights) == 16 && (unit.of_weights || !has_both);
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const Staging staging = staging_of<Tile>(shared, block % Tile::kStagings);
    if (thread % 128 == 0) {
      // Waits for what was written from here before. The previous tile may have had a single block,
      // or may not have been written by TMA, so its last commit says nothing about this place.
      if (block == 0) {
        wait_writes_read();
      } else {
        wait_writes_read<Tile::kStagings - 1>();
      }
    }
    sync_threads_of<128>(1 + group);
#pragma unroll
    for (int i = 0; i < Staging::kColumns / 8; ++i) {
      staging.template put<Tile::kDealsColumns>(
          unit.of_weights, i * 8, four_of(sum + (block * (Staging::kColumns / 8) + i) * 4));
    }
    if (by_tma) {
      fence_for_copies();
    }
    sync_threads_of<128>(1 + group);
    const int first = block * Staging::kColumns;
    if (!by_tma) {
      staging.write(arguments.results, unit, group_row, Staging::kColumns, first);
    } else if (thread % 128 == 0) {
      staging.write_by_tma(arguments.result_maps, arguments.results, unit, group_row, first);
      commit_writes();
    }
  }
}

/// Computes a unit, in the threads that multiply.
template <typename Tile, int kColumns>
LLTM_DEVICE void form_gradient_tile(const GradientArguments& arguments,
                                    unsigned char* shared,
                                    GradientRings<Tile>& rings,
                                    const typename Tile::Sums& sums,
                                    const GradientUnit& unit) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto release_right = [&](uint32_t empty) {
    if constexpr (Tile::kMulticast > 1) {
      if (thread % 128 < Tile::kMulticast) {
        arrive_in_cluster(address_in_block(empty, thread % 128));
      }
    } else if (thread % 128 == 0) {
      arrive(empty);
    }
  };
  float sum[kColumns / 2];
  Tile::Product::template multiply<kColumns>(
      sum, rings, unit.of_weights, unit.chunks, release_right);
  const GradientTiles& tiles = arguments.schedule.tiles(unit.of_weights);
  if constexpr (Tile::kSharesK) {
    if (tiles.share == RanksShare::kK) {
      __syncwarp();
      cluster_wait();
      sums.send(sum);
      float4 own[Tile::Sums::kMostOwn];
      sums.add_up(own);
      sync_threads_of<kGradientThreads>(3);  // tiles are staged where the parts are
      staging_of<Tile>(shared, 0).template write_groups<Tile::kDealsColumns>(
          arguments.results, unit, own, sums.own(), sums.rank * sums.own() * 8);
      return;
    }
  } else if (tiles.parts > 1) {
    // For another kernel to add.
    float4* const to = first_part(arguments, unit.of_weights, unit.tile) +
                       unit.part * (kColumns / 8 * kGradientThreads) + thread;
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      __stcg(to + i * kGradientThreads, four_of(sum + i * 4));
    }
    return;
  }
  write_gradient_tile<Tile, kColumns>(arguments, shared, unit, sum);
}
#endif

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSm)
    backward_wgmma_kernel(const __grid_constant__ GradientArguments arguments) {
#if defined(LLTM_HOPPER)
  extern __shared__ __align__(1024) unsigned char shared[];
  const GradientSchedule& schedule = arguments.schedule;
  const int cluster = static_cast<int>(cluster_index()), rank = cluster_rank();
  const int ranks = schedule.weights.ranks;
  const int thread = static_cast<int>(threadIdx.x);
  GradientRings<Tile> rings(shared_address(shared));
  const typename Tile::Sums sums{
      shared + Tile::kStagingOffset, shared_address(shared + Tile::kSumsBarrier), ranks, rank};
  if (thread == 0) {
    rings.left.prepare(Tile::kCopiers, Tile::Product::kLeftReaders);
    rings.right.prepare(Tile::kCopiers, Tile::kMulticast * kGradientThreads / 128);
    if constexpr (Tile::kSharesK) {
      sums.prepare();
    } else {
      fence_barriers();
    }
  }
  if constexpr (Tile::kSharesK) {
    __syncthreads();
    // Those whose tile is shared wait before they send its sums.
    cluster_arrive();
    start_next_kernel();
  } else {
    __syncwarp();
    cluster_arrive();
    cluster_wait();
  }

  if (thread >= kGradientThreads) {
    if constexpr (Tile::kCopiers == 2) {
      give_registers<40>();
    }
    if (thread % 32 == 0) {
      copy_gradient_operands<Tile>(
          arguments, shared, rings, cluster, rank, (thread - kGradientThreads) / 32);
      // After many blocks that each fill a multiprocessor, the next kernel's blocks would crowd
      // onto those that have none. So it may start only when all blocks have issued the copies of
      // their last chunks.
      start_next_kernel();
    }
    __syncwarp();
  } else {
    if constexpr (Tile::kCopiers == 2) {
      take_registers<232>();
    }
    // The threads that copy wait for the previous kernel, and these wait for the operands.
    if (const BiasParts& bias = arguments.results.bias; bias.parts != nullptr) {
      // While the first operands are being copied.
      wait_for_previous_kernel();
      using Element = typename Tile::Product::Element;
      sum_parts<kGradientThreads>(bias.parts,
                                  bias.count,
                                  arguments.results.gates,
                                  SumsInOrder<Element>{static_cast<Element*>(bias.d_bias)});
    }
    schedule.for_each_unit(cluster, rank, [&](const GradientUnit& unit) {
      if (unit.of_weights || Tile::kStateColumns == Tile::kWeightColumns) {
        form_gradient_tile<Tile, Tile::kWeightColumns>(arguments, shared, rings, sums, unit);
      } else {
        form_gradient_tile<Tile, Tile::kStateColumns>(arguments, shared, rings, sums, unit);
      }
    });
    if (thread % 128 == 0) {
      wait_writes();
    }
    __syncwarp();
  }
  if constexpr (Tile::kMulticast > 1) {
    // No block exits while the other one may still write to it or arrive at its barriers.
    cluster_arrive();
    cluster_wait();
  }
#else
  trap_wrong_image();
#endif
}

/// The columns of a tile per block, in the kernel that adds the parts of tiles and writes them.
constexpr int kSumColumns = 16;

template <typename Tile>
__global__ void __launch_bounds__(kGradientThreads)
    backward_wgmma_sums_kernel(const __grid_constant__ GradientArguments arguments) {
#if defined(LLTM_HOPPER)
  using Staging = typename Tile::Staging;
  constexpr int kGroups = kSumColumns / 8;
  __shared__ __align__(1024) unsigned char shared[2 * Staging::kBytes];
  const GradientSchedule& schedule = arguments.schedule;
  const int state_blocks =
      schedule.state.tiles_in_parts() * (schedule.state.tile_columns / kSumColumns);
  const bool of_weights = static_cast<int>(blockIdx.x) >= state_blocks;
  const int block = static_cast<int>(blockIdx.x) - (of_weights ? state_blocks : 0);
  const GradientTiles& tiles = schedule.tiles(of_weights);
  const int shares = tiles.tile_columns / kSumColumns;
  const int tile = block / shares, share = block % shares;
  const int thread = static_cast<int>(threadIdx.x);
  const float4* from =
      first_part(arguments, of_weights, tile) + share * kGroups * kGradientThreads + thread;
  start_next_kernel();
  wait_for_previous_kernel();
  float4 sums[kGroups] = {};
#pragma unroll 4
  for (int part = 0; part < tiles.parts; ++part) {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      add(sums[i], __ldcg(from + i * kGradientThreads));
    }
    from += shares * kGroups * kGradientThreads;
  }
  GradientUnit unit = tiles.tile(tile / tiles.columns, tile % tiles.columns);
  unit.of_weights = of_weights;
  Staging(shared + thread / 128 * Staging::kBytes)
      .template write_groups<Tile::kDealsColumns>(
          arguments.results, unit, sums, kGroups, share * kSumColumns);
#else
  trap_wrong_image();
#endif
}

}  // namespace lltm::cuda
