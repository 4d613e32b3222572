// The forward of the cell, or of a step of a sequence, in one launch by Hopper's own instructions
// (sm_90a): TMA brings the chunks of K, wgmma multiplies them. As forward_tiles.cuh otherwise: the
// same hidden columns of all three gates in a block, K over old_h and then over input, shared by a
// cluster. The product is a policy: of 16 bits and TF32 as they lie in shared memory
// (products/wgmma.cuh), or float32 by three TF32 products (products/wgmma_three_tf32.cuh). What TMA
// cannot describe has been packed before (pack.h).
#pragma once

#include "../epilogue/cell.cuh"
#include "../epilogue/fragments.cuh"
#include "../epilogue/math.cuh"
#include "../epilogue/step.cuh"
#include "../problem.h"
#include "../products/wgmma.cuh"
#include "../products/wgmma_three_tf32.cuh"
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
#include "forward_kernels.h"

#include <algorithm>

namespace lltm::cuda {

template <typename Problem>
struct ForwardWgmmaArguments {
  ForwardMaps maps;
  Problem problem;
  KSplit split;
  Segments chunks;  // of K
  int stage_bytes;  // what arrives a chunk
};

/// A tile of Product's rows and kHidden hidden columns. Product::kRowTiles tiles of the same
/// columns are in one cluster, beside the ranks that share their K: a chunk of weights is read once
/// for all of them.
///
/// kEvenState: state_size is even, so that the end writes two neighbours at once.
template <typename Problem_, typename Product_, bool kEvenState, int kBlocksPerSm_ = 1>
struct ForwardWgmmaTile {
  using Problem = Problem_;
  static constexpr bool kOfSequence = cuda::kOfSequence<Problem>;
  using Product = Product_;
  static constexpr int kHidden = Product::kTileN / 3, kBlocksPerSm = kBlocksPerSm_;
  using Math = ProductMath<Product::kArithmetic>;
  using Epilogue = EpilogueOf<Problem, typename Product::Element, Math, 2, 2, kEvenState>;
  using Finisher = FragmentFinisher<Epilogue, 4 * Product::kGroups, kHidden, Product::kFinishers>;

  // Shared memory: the pipeline, a barrier for the sums, the sums. Those of a block by itself
  // replace the stages.
  static constexpr int kUnitBytes = unit_bytes(kHidden), kUnits = Product::kTileM / 4;
  static constexpr int kSumsBarrier = (Product::kPipelineBytes + 7) / 8 * 8;
  static constexpr int kPartsOffset = (kSumsBarrier + 8 + 127) / 128 * 128;
  static constexpr int kMostBytes = (kBlocksPerSm == 1 ? 227 : 113) * 1024;
  static constexpr int kMaxRanks =
      std::min(kMaxSplit / Product::kRowTiles,
               std::max(1, (kMostBytes - kPartsOffset) / kUnitBytes - kUnits + 1));
  static constexpr int kBlockBytes = kPartsOffset;
  static constexpr int kClusterBytes =
      kPartsOffset + (kMaxRanks == 1 ? 0 : (kUnits + kMaxRanks - 1) * kUnitBytes);
  static_assert(kUnits * kUnitBytes <= Product::kStages * Product::kStageBytes);
};

template <typename Tile>
__global__ void __launch_bounds__(Tile::Product::kThreads, Tile::kBlocksPerSm) forward_wgmma_kernel(
    const __grid_constant__ ForwardWgmmaArguments<typename Tile::Problem> arguments) {
#if defined(LLTM_HOPPER)
  using Product = typename Tile::Product;
  constexpr int kRowTiles = Product::kRowTiles;
  extern __shared__ __align__(1024) unsigned char shared[];
  const ForwardProblem& p = cell_of(arguments.problem);

  // In a cluster: ranks, then row tiles.
  const int ranks = arguments.split.ranks;
  const int block = cluster_rank();
  const int rank = block % ranks, row_tile = block / ranks;
  const int64_t first_row =
      (blockIdx.y + int64_t(gridDim.y) * blockIdx.z) * int64_t(Product::kTileM);
  if (first_row - row_tile * Product::kTileM >= p.batch) {
    return;  // and so does the whole cluster
  }
  const int first_hidden = static_cast<int>(cluster_index()) * Tile::kHidden;
  const uint32_t sums_barrier = shared_address(shared + Tile::kSumsBarrier);
  typename Tile::Finisher finisher(
      typename Tile::Epilogue(arguments.problem), first_row, first_hidden, rank, ranks);
  Product::prepare(shared);
  if (threadIdx.x == 0) {
    init_barrier(sums_barrier, 1 + finisher.own_arrivals());
    fence_barriers();
    arrive_expecting(sums_barrier, finisher.expected_bytes());
    prefetch_map(&arguments.maps.weights_h);
    prefetch_map(&arguments.maps.old_h);
    if (p.input_features > 0) {
      prefetch_map(&arguments.maps.weights_input);
      prefetch_map(&arguments.maps.input);
    }
  }
  __syncwarp();
  if (kRowTiles * ranks > 1) {
    cluster_arrive();
    cluster_wait();
  } else {
    __syncthreads();
  }
  if constexpr (!Tile::kOfSequence) {
    start_next_kernel();
    wait_for_previous_kernel();
  } else {
    // The first step lets the next one start when all that came before is done: so it is when any
    // later step starts, each of which loads early and lets the next one start at once.
    if (loads_early(arguments.problem)) {
      start_next_kernel();
    }
    if (threadIdx.x < Product::kFinishers) {
      wait_for_previous_kernel();
      start_next_kernel();
    }
  }

  uint16_t sharing_blocks = 0;
#pragma unroll
  for (int row = 0; row < kRowTiles; ++row) {
    sharing_blocks |= 1 << (rank + ranks * row);
  }
  const int begin = arguments.split.first_chunk(rank);
  const int end = arguments.split.first_chunk(rank + 1);
  const auto load_boxes = [&](uint32_t a,
                              uint32_t b,
                              uint32_t barrier_a,
                              uint32_t barrier_b,
                              int chunk,
                              Operands which) {
    const auto piece = Tile::kOfSequence ? arguments.chunks.piece_from_x(
                                               rank + (chunk - begin) * ranks, Product::kChunkK)
                                         : arguments.chunks.piece(chunk, Product::kChunkK);
    int k = static_cast<int>(piece.first);
    if constexpr (!Tile::kOfSequence) {
      k -= piece.of_h ? 0 : static_cast<int>(p.input_shift);
    }
    const CUtensorMap* const weights =
        &piece.of(arguments.maps.weights_h, arguments.maps.weights_input);
    if (which != Operands::kCarried) {
      if constexpr (kRowTiles == 1) {
        copy_box_3d(b, weights, k, first_hidden, 0, barrier_b);
      } else if (chunk % kRowTiles == row_tile) {
        copy_box_3d(b, weights, k, first_hidden, 0, barrier_b, sharing_blocks);
      }
    }
    if (which == Operands::kAll || (which == Operands::kCarried) == piece.of_h) {
      copy_box_2d(a,
                  &piece.of(arguments.maps.old_h, arguments.maps.input),
                  k,
                  static_cast<int>(first_row),
                  barrier_a);
    }
  };
  Product product;
  unsigned char* const parts = shared + (ranks == 1 ? 0 : Tile::kPartsOffset);
  const auto finish = [&] {
    if (threadIdx.x < Product::kMultipliers) {
      if (ranks == 1) {
        // All groups are done with the stages, which the sums replace.
        sync_threads_of<2, Product::kMultipliers>();
      }
      finisher.exchange(
          product.sum, parts, sums_barrier, [&](int to) { return block + to - rank; });
    }
    wait_phase(sums_barrier, 0);
    finisher.finish(parts);
  };
  // Registers of a float32 product are short: what the end needs is fetched behind it.
  const auto fetch_and_finish = [&] {
    finisher.fetch();
    finish();
  };
  if constexpr (Product::kArithmetic != Arithmetic::kFloat32) {
    product.template run<Tile::kOfSequence>(
        shared,
        begin,
        end,
        arguments.stage_bytes,
        rank,
        ranks,
        loads_early(arguments.problem),
        [&](uint32_t a, uint32_t b, uint32_t barrier, int chunk, Operands which) {
          load_boxes(a, b, barrier, barrier, chunk, which);
        },
        [&] { finisher.fetch(); },
        finish);
  } else if constexpr (Tile::kOfSequence) {
    product.run_overlapping(
        shared, begin, end, loads_early(arguments.problem), load_boxes, fetch_and_finish);
  } else {
    product.run(
        shared,
        1,
        begin,
        end,
        [&](uint32_t a, uint32_t b, uint32_t barrier, int, int chunk) {
          load_boxes(a, b, barrier, barrier, chunk, Operands::kAll);
        },
        [&](int) { fetch_and_finish(); });
  }
#else
  trap_wrong_image();
#endif
}

template <typename Tile>
cudaError_t launch_forward_wgmma_tile(const typename Tile::Problem& problem,
                                      int split,
                                      cudaStream_t stream) {
  const ForwardProblem& p = cell_of(problem);
  using Product = typename Tile::Product;
  if (split > Tile::kMaxRanks) {
    return cudaErrorInvalidValue;
  }
  ForwardWgmmaArguments<typename Tile::Problem> arguments{};
  arguments.problem = problem;
  arguments.chunks = segments_of(p.state_size, p.input_columns(), Product::kChunkK);
  arguments.split = split_of_k(split, arguments.chunks.pieces(), Product::kTileM);
  const int rows = Product::box_rows(p.batch);
  arguments.stage_bytes = rows * 128 + Product::kBytesB;
  if (!describe_forward(&arguments.maps,
                        p,
                        {.arithmetic = Product::kArithmetic,
                         .chunk_k = Product::kChunkK,
                         .rows = rows,
                         .hidden = Tile::kHidden})) {
    return cudaErrorInvalidValue;
  }
  const int64_t row_tiles = tiles_of(p.batch, Product::kTileM);
  constexpr int kRowTiles = Product::kRowTiles;
  const dim3 grid = grid_of_tiles((row_tiles + kRowTiles - 1) / kRowTiles * kRowTiles,
                                  tiles_of(p.state_size, Tile::kHidden),
                                  split,
                                  kRowTiles);
  return launch_in_clusters<&forward_wgmma_kernel<Tile>,
                            Product::kThreads,
                            Tile::kBlockBytes,
                            Tile::kClusterBytes>(arguments, grid, dim3(split, kRowTiles), stream);
}

template <typename Product, int kBlocksPerSm = 1, typename Problem>
cudaError_t launch_even_or_odd(const Problem& problem, int split, cudaStream_t stream) {
  const auto launch = [&]<bool kEvenState>() {
    using Tile = ForwardWgmmaTile<Problem, Product, kEvenState, kBlocksPerSm>;
    return launch_forward_wgmma_tile<Tile>(problem, split, stream);
  };
  if constexpr (std::is_same_v<Problem, StepProblem>) {
    return launch.template operator()<true>();  // a step of that kind has no odd state_size
  } else {
    return cell_of(problem).state_size % 2 == 0 ? launch.template operator()<true>()
                                                : launch.template operator()<false>();
  }
}

// Stages for one block a multiprocessor, so that the next kernel's blocks, which start early, go
// where no block of this one is; threads for an item each, of the ranks that plan.cpp chooses.
template <Arithmetic kArithmetic, typename Problem>
cudaError_t launch_forward_wgmma(const Problem& p, WgmmaTile tile, int split, cudaStream_t stream) {
  if constexpr (kArithmetic == Arithmetic::kFloat32) {
    constexpr Major kK = Major::kK;
    switch (tile) {
      case WgmmaTile::k64x8:
        return launch_even_or_odd<ThreeTf32Product<kK, kK, 1, 1, 8, 1, 24>>(p, split, stream);
      case WgmmaTile::k64x32:
        return launch_even_or_odd<ThreeTf32Product<kK, kK, 1, 1, 5, 1, 96>>(p, split, stream);
      case WgmmaTile::k128x32:
        return launch_even_or_odd<ThreeTf32Product<kK, kK, 2, 2, 4, 1, 96>>(p, split, stream);
      default:
        return cudaErrorInvalidValue;
    }
  } else {
    switch (tile) {
      case WgmmaTile::k64x8:
        return launch_even_or_odd<WgmmaProduct<kArithmetic, 1, 24, 11, 1, 0>>(p, split, stream);
      case WgmmaTile::k64x24: {
        constexpr int kHelpers = kOfSequence<Problem> ? 0 : 64;
        return launch_even_or_odd<WgmmaProduct<kArithmetic, 1, 72, 8, 1, kHelpers>>(
            p, split, stream);
      }
      case WgmmaTile::k64x40:
        return launch_even_or_odd<WgmmaProduct<kArithmetic, 1, 120, 7, 1, 32>>(p, split, stream);
      case WgmmaTile::k64x40InPairs:
        return launch_even_or_odd<WgmmaProduct<kArithmetic, 1, 120, 7, 2, 192>>(p, split, stream);
      case WgmmaTile::k128x32:
        return launch_even_or_odd<WgmmaProduct<kArithmetic, 2, 96, 6, 1, 0>>(p, split, stream);
      case WgmmaTile::k128x32InPairs:
        return launch_even_or_odd<WgmmaProduct<kArithmetic, 2, 96, 7, 2, 0>>(p, split, stream);
      case WgmmaTile::k128x32InPairsTwice:
        // While one block of a multiprocessor ends, another multiplies.
        return launch_even_or_odd<WgmmaProduct<kArithmetic, 2, 96, 3, 2, 0>, 2>(p, split, stream);
      case WgmmaTile::k128x64InPairs:
        return launch_even_or_odd<WgmmaProduct<kArithmetic, 2, 192, 5, 2, 0>>(p, split, stream);
      default:
        return cudaErrorInvalidValue;
    }
  }
}

}  // namespace lltm::cuda
