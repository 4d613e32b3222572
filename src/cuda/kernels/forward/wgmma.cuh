// The forward of the cell, or of a step of a sequence, in one launch on Hopper (sm_90a): TMA loads
// the chunks of K and wgmma multiplies them. Otherwise it is like tiles.cuh: a block
// computes the same hidden columns of all three gates, and a cluster shares K, which runs over
// old_h and then over input, in a step over input first. The product is a policy: 16 bits and TF32,
// read from shared memory (products/wgmma.cuh), or float32 by three TF32 products
// (products/wgmma_three_tf32.cuh). What TMA cannot describe is packed before (pack.h).
#pragma once

#include "../../epilogue/cell.cuh"
#include "../../epilogue/fragment_finisher.cuh"
#include "../../epilogue/math.cuh"
#include "../../epilogue/step.cuh"
#include "../../problem.h"
#include "../../products/wgmma.cuh"
#include "../../products/wgmma_three_tf32.cuh"
#include "../../ptx/barrier.cuh"
#include "../../ptx/bulk_copy.cuh"
#include "../../ptx/cluster.cuh"
#include "../../ptx/overlap.cuh"
#include "../../ptx/shared.cuh"
#include "../../ptx/wgmma.cuh"
#include "../../runtime/launch.cuh"
#include "../../runtime/tensor_maps.h"
#include "../../scheduler/split_of_k.h"
#include "kernels.h"

#include <algorithm>

namespace lltm::cuda {

template <typename Problem>
struct ForwardWgmmaArguments {
  ForwardMaps maps;
  Problem problem;
  KSplit split;
  Segments chunks;  // of K
  int bytes_a;      // of A that arrive per chunk
  KSplit x_split;   // of the chunks of x alone, for a sequence
};

/// A tile of Product's rows and kHidden hidden columns. A cluster has Product::kRowTiles tiles of
/// the same columns, in addition to the ranks that share their K: a chunk of weights is read once
/// for all of them.
///
/// kNeighbors: how many neighbors of a row the epilogue writes at once: four, two or one.
template <typename Problem_, typename Product_, int kNeighbors>
struct ForwardWgmmaTile {
  using Problem = Problem_;
  static constexpr bool kOfSequence = cuda::kOfSequence<Problem>;
  using Product = Product_;
  // Two threads load, one per operand, where the kernel overlaps the previous one.
  static constexpr bool kLoadsByTwo = kOfSequence && Product::kArithmetic != Arithmetic::kFloat32;
  static constexpr int kHidden = Product::kTileN / 3;
  using Math = ForwardMath<Product::kArithmetic>;
  static constexpr int kItemRows = kNeighbors == 4 ? 1 : 2;
  using Epilogue = EpilogueOf<Problem,
                              typename Product::Element,
                              Math,
                              kItemRows,
                              4 / kItemRows,
                              (kNeighbors > 1)>;
  using Finisher = FragmentFinisher<Epilogue, 4 * Product::kGroups, kHidden, Product::kFinishers>;

  // Shared memory: the pipeline, a barrier for the sums, and the sums. The sums of a block without
  // a cluster replace the stages.
  static constexpr int kUnitBytes = unit_bytes(kHidden), kUnits = Product::kTileM / 4;
  static constexpr int kSumsBarrier = (Product::kPipelineBytes + 7) / 8 * 8;
  static constexpr int kPartsOffset = (kSumsBarrier + 8 + 127) / 128 * 128;
  static constexpr int kMostBytes = 227 * 1024;
  static constexpr int kMaxRanks =
      std::min(kLargestCluster / Product::kRowTiles,
               std::max(1, (kMostBytes - kPartsOffset) / kUnitBytes - kUnits + 1));
  static constexpr int kBlockBytes = kPartsOffset;
  static constexpr int kClusterBytes =
      kPartsOffset + (kMaxRanks == 1 ? 0 : (kUnits + kMaxRanks - 1) * kUnitBytes);
  static_assert(kUnits * kUnitBytes <= Product::kStages * Product::kStageBytes);

  // Whether blocks of a step and of the next one fit a multiprocessor together. If so, x and
  // weights are loaded and x is multiplied by the time h is available. Blocks of the first step get
  // so much shared memory that no two of them fit together, and those that follow find one place on
  // each.
  static constexpr bool kMeetsNextStep = kOfSequence && kClusterBytes <= 113 * 1024;
  static constexpr int kFirstStepBytes = kMeetsNextStep ? 116 * 1024 : kClusterBytes;
};

template <typename Tile>
__global__ void __launch_bounds__(Tile::Product::kThreads, 1) forward_wgmma_kernel(
    const __grid_constant__ ForwardWgmmaArguments<typename Tile::Problem> arguments) {
#if defined(LLTM_HOPPER)
  using Product = typename Tile::Product;
  constexpr int kRowTiles = Product::kRowTiles;
  constexpr bool kIsFloat32 = Product::kArithmetic == Arithmetic::kFloat32;
  extern __shared__ __align__(1024) unsigned char shared[];
  const ForwardProblem& p = arguments.problem;

  // In a cluster, blocks are numbered by rank first, then by row tile.
  const int ranks = arguments.split.ranks;
  const int block = cluster_rank();
  const int rank = block % ranks, row_tile = block / ranks;
  const int64_t first_row =
      (blockIdx.y + int64_t(gridDim.y) * blockIdx.z) * int64_t(Product::kTileM);
  if (first_row - row_tile * Product::kTileM >= p.batch) {
    return;  // as does the whole cluster
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
  if (kRowTiles * ranks == 1) {
    __syncthreads();
  } else {
    cluster_arrive();
    if (!Tile::kLoadsByTwo || kRowTiles > 1 || threadIdx.x < Product::kFinishers) {
      cluster_wait();
    } else {
      // Loading uses only barriers of this block, which one of these two warps prepared.
      sync_threads_of<Product::kThreads - Product::kFinishers>(3);
    }
  }
  if constexpr (!Tile::kOfSequence) {
    start_next_kernel();
    wait_for_previous_kernel();
  } else {
    // The first step lets the next one start only when all earlier kernels are complete. So these
    // are also complete when any later step starts, which loads early and lets the next one start
    // at once.
    if (loads_early(arguments.problem)) {
      start_next_kernel();
    }
  }

  const int begin = arguments.split.first_chunk(rank);
  const int end = arguments.split.first_chunk(rank + 1);
  const int early_chunks = !Tile::kOfSequence ? 0
                                              : arguments.x_split.first_chunk(rank + 1) -
                                                    arguments.x_split.first_chunk(rank);
  Product product;
  unsigned char* const parts = shared + (ranks == 1 ? 0 : Tile::kPartsOffset);
  const auto finish = [&] {
    if (threadIdx.x < Product::kMultipliers) {
      if (ranks == 1) {
        // All warpgroups are done with the stages, which the sums replace.
        sync_threads_of<Product::kMultipliers>(2);
      }
      finisher.exchange(
          product.sum, parts, sums_barrier, [&](int to) { return block + to - rank; });
    }
    finisher.fetch_further();
    wait_phase(sums_barrier, 0);
    finisher.finish(parts);
  };
  // The threads that multiply have not waited for the previous kernel. In a step they multiply x,
  // and in float32 all of K, before they read here what that kernel wrote.
  const auto fetch = [&] {
    if constexpr (Tile::kOfSequence) {
      wait_for_previous_kernel();
      start_next_kernel();
    }
    finisher.fetch();
  };
  uint16_t sharing_blocks = 0;
#pragma unroll
  for (int row = 0; row < kRowTiles; ++row) {
    sharing_blocks |= 1 << (rank + ranks * row);
  }
  const auto copy_a = [&](uint32_t to, uint32_t barrier, bool of_h, int k) {
    copy_box_2d(to,
                of_h ? &arguments.maps.old_h : &arguments.maps.input,
                k,
                static_cast<int>(first_row),
                barrier);
  };
  const auto copy_b = [&](uint32_t to, uint32_t barrier, bool of_h, int k, int chunk) {
    const CUtensorMap* const weights =
        of_h ? &arguments.maps.weights_h : &arguments.maps.weights_input;
    if constexpr (kRowTiles == 1) {
      copy_box_3d(to, weights, k, first_hidden, 0, barrier);
    } else if (chunk % kRowTiles == row_tile) {
      copy_box_3d(to, weights, k, first_hidden, 0, barrier, sharing_blocks);
    }
  };
  // Chunks count from zero within this rank. Those of a step are distributed one by one, those of x
  // first, so that all ranks have the same number of them or one more.
  const auto piece_of = [&](int chunk) {
    return arguments.chunks.piece(Tile::kOfSequence ? rank + chunk * ranks : begin + chunk,
                                  Product::kChunkK,
                                  /*x_first=*/Tile::kOfSequence);
  };
  const auto load_a = [&](uint32_t to, uint32_t barrier, int chunk) {
    const auto piece = piece_of(chunk);
    copy_a(to, barrier, piece.of_h, static_cast<int>(piece.first));
  };
  const auto load_b = [&](uint32_t to, uint32_t barrier, int chunk) {
    const auto piece = piece_of(chunk);
    copy_b(to, barrier, piece.of_h, static_cast<int>(piece.first), begin + chunk);
  };
  if constexpr (Tile::kLoadsByTwo) {
    const bool early = loads_early(arguments.problem);
    // Called by each of two threads.
    const auto load_chunks = [&](auto slots, int bytes, bool awaits_h, const auto& copy) {
      int chunk = 0, piece = rank;
#pragma unroll 1
      for (int segment = 0; segment < 2; ++segment) {
        const bool of_h = segment == 1;
        if ((awaits_h && of_h) || !early) {
          wait_for_previous_kernel();
        }
        const int stop = of_h ? arguments.chunks.pieces() : arguments.chunks.x_pieces;
        int k = (piece - segment * arguments.chunks.x_pieces) * Product::kChunkK;
#pragma unroll 1
        for (; piece < stop; piece += ranks) {
          if (chunk >= Product::kStages) {
            slots.wait_empty();
          }
          arrive_expecting(slots.full(), bytes);
          copy(slots, of_h, k, chunk);
          k += ranks * Product::kChunkK;
          ++chunk;
          slots.advance();
        }
      }
    };
    product.run(
        shared,
        end - begin,
        early_chunks,
        rank,
        ranks,
        [&](const auto& slots) {
          // One thread for both would take longer to issue the copies than these take.
          if (threadIdx.x == Product::kFinishers) {
            load_chunks(slots,
                        arguments.bytes_a,
                        /*awaits_h=*/true,
                        [&](const auto& at, bool of_h, int k, int) {
                          copy_a(at.data(), at.full(), of_h, k);
                        });
          } else if (threadIdx.x == Product::kFinishers + 32) {
            load_chunks(slots,
                        Product::kBytesB,
                        /*awaits_h=*/false,
                        [&](const auto& at, bool of_h, int k, int chunk) {
                          copy_b(at.data() + Product::kBytesA, at.full(), of_h, k, chunk);
                        });
          }
        },
        fetch,
        finish);
  } else if constexpr (!kIsFloat32) {
    product.run(
        shared,
        end - begin,
        early_chunks,
        rank,
        ranks,
        [&](auto slots) {
          if (threadIdx.x == Product::kFinishers) {
            const int bytes = arguments.bytes_a + Product::kBytesB;
#pragma unroll 1
            for (int chunk = 0; chunk < end - begin; ++chunk) {
              slots.wait_empty();
              arrive_expecting(slots.full(), bytes);
              load_b(slots.data() + Product::kBytesA, slots.full(), chunk);
              load_a(slots.data(), slots.full(), chunk);
              slots.advance();
            }
          }
        },
        fetch,
        finish);
  } else {
    product.run(
        shared, end - begin, early_chunks, loads_early(arguments.problem), load_a, load_b, [&] {
          // The product leaves few registers: what the epilogue needs is fetched after it.
          fetch();
          finish();
        });
  }
#else
  trap_wrong_image();
#endif
}

template <typename Tile>
cudaError_t launch_forward_wgmma_tile(const typename Tile::Problem& problem,
                                      int split,
                                      cudaStream_t stream) {
  const ForwardProblem& p = problem;
  using Product = typename Tile::Product;
  if (split > Tile::kMaxRanks) {
    return cudaErrorInvalidValue;
  }
  ForwardWgmmaArguments<typename Tile::Problem> arguments{};
  arguments.problem = problem;
  arguments.chunks = segments_of(p.state_size, p.input_columns(), Product::kChunkK);
  arguments.split = split_of_k(split, arguments.chunks.pieces(), Product::kTileM);
  arguments.x_split = split_of_k(split, arguments.chunks.x_pieces, Product::kTileM);
  const int rows = Product::box_rows(p.batch);
  arguments.bytes_a = rows * 128;
  if (!describe_forward(&arguments.maps, p, Product::kArithmetic, rows, Tile::kHidden)) {
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
                            Tile::kClusterBytes,
                            Tile::kFirstStepBytes>(
      arguments,
      grid,
      dim3(split, kRowTiles),
      stream,
      Tile::kMeetsNextStep && !loads_early(problem) ? Tile::kFirstStepBytes : 0);
}

/// How many neighbors of a row an epilogue reads and writes at once. Two are only written at once.
inline int neighbors_of(const ForwardProblem& p, int size) {
  const bool fours =
      p.old_cell.starts_at_neighbors(4, size) && Matrix{p.bias, 0}.starts_at_neighbors(4, size);
  return std::min(neighbors_in(p.state_size), fours ? 4 : 2);
}
inline int neighbors_of(const StepOfRowsProblem& p, int) {
  return neighbors_in(p.state_size);
}

template <typename Product, typename Problem>
cudaError_t launch_for_neighbors(const Problem& problem, int split, cudaStream_t stream) {
  const auto launch = [&]<int kNeighbors>() {
    using Tile = ForwardWgmmaTile<Problem, Product, kNeighbors>;
    return launch_forward_wgmma_tile<Tile>(problem, split, stream);
  };
  if constexpr (std::is_same_v<Problem, StepProblem>) {
    return launch.template operator()<4>();  // as a StepProblem allows
  } else {
    switch (neighbors_of(problem, sizeof(typename Product::Element))) {
      case 4:
        return launch.template operator()<4>();
      case 2:
        return launch.template operator()<2>();
      default:
        return launch.template operator()<1>();
    }
  }
}

/// Launches the one of these products that has the tile.
template <typename... Products, typename Problem>
cudaError_t launch_product(const Problem& problem,
                           const TileShape& tile,
                           int split,
                           cudaStream_t stream) {
  cudaError_t error = cudaErrorInvalidValue;
  const auto launch_if_it_has = [&]<typename Product>() {
    constexpr int kHidden = Product::kTileN / 3;
    if (tile == TileShape{Product::kTileM, kHidden, Product::kRowTiles}) {
      error = launch_for_neighbors<Product>(problem, split, stream);
    }
  };
  (launch_if_it_has.template operator()<Products>(), ...);
  return error;
}

// There are enough stages to fill a multiprocessor with one block, so that blocks of the next
// kernel, which start early, go where no block of this one is. Steps in tiles of 64x8 are the
// exception, except in float32 (kMeetsNextStep). There are enough threads for one item each, with
// the ranks that the plan chooses.
template <Arithmetic kArithmetic, typename Problem>
cudaError_t launch_forward_wgmma(const Problem& p,
                                 const TileShape& tile,
                                 int split,
                                 cudaStream_t stream) {
  constexpr bool kOverlaps = kOfSequence<Problem>;
  if constexpr (kArithmetic == Arithmetic::kFloat32) {
    return launch_product<ThreeTf32Product<Major::kK, 1, 1, 8, 24>,
                          ThreeTf32Product<Major::kK, 1, 1, 5, 96>,
                          ThreeTf32Product<Major::kK, 2, 2, 4, 96>>(p, tile, split, stream);
  } else {
    return launch_product<WgmmaProduct<kArithmetic, 1, 24, kOverlaps ? 8 : 11, 1, 0, kOverlaps>,
                          WgmmaProduct<kArithmetic, 1, 72, 8, 1, 0, kOverlaps>,
                          WgmmaProduct<kArithmetic, 1, 120, 7, 1, 32, kOverlaps>,
                          WgmmaProduct<kArithmetic, 1, 120, 7, 2, 192, kOverlaps>,
                          WgmmaProduct<kArithmetic, 2, 96, 6, 1, 0, kOverlaps>,
                          WgmmaProduct<kArithmetic, 2, 96, 7, 2, 0, kOverlaps>,
                          WgmmaProduct<kArithmetic, 2, 192, 5, 2, 0, kOverlaps>,
                          WgmmaProduct<kArithmetic, 3, 96, 4, 1, 0, kOverlaps>>(
        p, tile, split, stream);
  }
}

}  // namespace lltm::cuda
