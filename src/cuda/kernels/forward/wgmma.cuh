// The forward of the cell, or of a step of a sequence, in one launch on Hopper (sm_90a): TMA loads
// the chunks of K and wgmma multiplies them. Otherwise it is like tiles.cuh: a block computes the
// same hidden columns of all gates, and a cluster shares K, which runs over old_h and then over
// input, in a step over input first. A cell that does not add its sides has more sums than the
// product: some are set apart between the two. The product is a policy: 16 bits and TF32, read from
// shared memory (products/wgmma.cuh), or float32 by three TF32 products
// (products/wgmma_three_tf32.cuh). What TMA cannot describe is packed before (pack.h).
#pragma once

#include "../../epilogue/cell.cuh"
#include "../../epilogue/fragment_finisher.cuh"
#include "../../epilogue/math.cuh"
#include "../../epilogue/step.cuh"
#include "../../problem.h"
#include "../../products/hopper.cuh"
#include "../../ptx/barrier.cuh"
#include "../../ptx/bulk_copy.cuh"
#include "../../ptx/cluster.cuh"
#include "../../ptx/overlap.cuh"
#include "../../ptx/shared.cuh"
#include "../../ptx/wgmma.cuh"
#include "../../runtime/dispatch.h"
#include "../../runtime/launch.cuh"
#include "../../runtime/tensor_maps.h"
#include "../../scheduler/split_of_k.h"
#include "../meet_blocks.cuh"
#include "kernels.h"

#include <type_traits>

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
/// kFours: the epilogue reads and writes four neighbors of a row at once.
template <typename Problem_, typename Cell, typename Product_, bool kFours>
struct ForwardWgmmaTile
    : FragmentMemory<Product_,
                     Product_::kTileN / cell::kGatesOfWeights<Cell> * kSumsOf<Problem_, Cell>> {
  using Problem = Problem_;
  static constexpr bool kOfSequence = cuda::kOfSequence<Problem>;
  using Product = Product_;
  static constexpr int kGates = cell::kGatesOfWeights<Cell>, kHidden = Product::kTileN / kGates;
  using Memory = FragmentMemory<Product, kHidden * kSumsOf<Problem, Cell>>;
  // Two threads load, one per operand, where the kernel overlaps the previous one.
  static constexpr bool kLoadsByTwo = kOfSequence && Product::kArithmetic != Arithmetic::kFloat32;
  using Math = ForwardMath<Product::kArithmetic>;
  static constexpr int kItemRows = kFours ? 1 : 2;
  using Epilogue =
      EpilogueOf<Problem, Cell, typename Product::Element, Math, kItemRows, 4 / kItemRows>;
  using Finisher = FragmentFinisher<Epilogue, 4 * Product::kGroups, kHidden, Product::kFinishers>;
  // The sums of a thread that are set apart between the products of h and of x.
  static constexpr int kApart = Finisher::kSums - Product::kSums;

  // Whether blocks of a step and of the next one fit a multiprocessor together. If so, x and
  // weights are loaded and x is multiplied by the time h is available. Blocks of the first step get
  // so much shared memory that no two of them fit together, and those that follow find one place on
  // each.
  static constexpr bool kMeetsNextStep = kOfSequence && Memory::kFitsTwice;
  static constexpr int kFirstStepBytes =
      kMeetsNextStep ? Memory::kAloneBytes : Memory::kClusterBytes;
};

/// Which part of the product a block computes. In a cluster, blocks are numbered by rank first,
/// then by row tile.
template <typename Tile>
struct ForwardBlock {
  using Arguments = ForwardWgmmaArguments<typename Tile::Problem>;
  using Product = typename Tile::Product;

  int ranks, number, rank, row_tile;
  int64_t first_row;
  int first_hidden;
  int first_chunk, chunks;  // of K
  int early_chunks;         // in a step, those that need nothing of the previous one
  int h_chunks;             // otherwise, those of h, which are the first

  LLTM_DEVICE explicit ForwardBlock(const Arguments& of)
      : ranks(of.split.ranks),
        number(cluster_rank()),
        rank(number % ranks),
        row_tile(number / ranks),
        first_row((blockIdx.y + int64_t(gridDim.y) * blockIdx.z) * int64_t(Product::kTileM)),
        first_hidden(static_cast<int>(cluster_index()) * Tile::kHidden),
        first_chunk(of.split.first_chunk(rank)),
        chunks(of.split.first_chunk(rank + 1) - first_chunk),
        early_chunks(!Tile::kOfSequence
                         ? 0
                         : of.x_split.first_chunk(rank + 1) - of.x_split.first_chunk(rank)),
        h_chunks(min(max(of.chunks.h_pieces - first_chunk, 0), chunks)) {}

  LLTM_DEVICE KRange k_range(bool early) const {
    return {chunks, early_chunks, early, rank, ranks};
  }
  /// The number in the cluster of this row tile's block of another rank.
  LLTM_DEVICE int number_of(int of_rank) const { return number + of_rank - rank; }
};

/// Starts the copies of a block's chunks: boxes of old_h and input to A, and of weights to B. The
/// row tiles of a cluster share the chunks of B, each of which one of them copies to all.
template <typename Tile>
class ForwardLoader {
 public:
  using Arguments = ForwardWgmmaArguments<typename Tile::Problem>;
  using Product = typename Tile::Product;

  LLTM_DEVICE ForwardLoader(const Arguments& arguments, const ForwardBlock<Tile>& block)
      : arguments_(arguments), block_(block) {
#pragma unroll
    for (int row = 0; row < Product::kRowTiles; ++row) {
      sharing_blocks_ |= 1 << (block.rank + block.ranks * row);
    }
  }

  /// Copies one operand of a chunk, which counts from zero within the rank.
  LLTM_DEVICE void load_a(uint32_t to, uint32_t barrier, int chunk) const {
    const Segments::Piece piece = piece_of(chunk);
    copy_a(to, barrier, piece.of_h, static_cast<int>(piece.first));
  }
  LLTM_DEVICE void load_b(uint32_t to, uint32_t barrier, int chunk) const {
    const Segments::Piece piece = piece_of(chunk);
    copy_b(to, barrier, piece.of_h, static_cast<int>(piece.first), block_.first_chunk + chunk);
  }

  /// Copies all chunks to the slots of a ring. Called by all threads that may load.
  template <typename Slots>
  LLTM_DEVICE void load_all(const Slots& slots) const {
    if constexpr (!Tile::kLoadsByTwo) {
      if (threadIdx.x == Product::kFinishers) {
        load_both(slots);
      }
    } else if (threadIdx.x == Product::kFinishers) {
      load_of_step</*kOfA=*/true>(slots);
    } else if (threadIdx.x == Product::kFinishers + 32) {
      load_of_step</*kOfA=*/false>(slots);
    }
  }

 private:
  template <typename Slots>
  LLTM_DEVICE void load_both(Slots slots) const {
    const int bytes = arguments_.bytes_a + Product::kBytesB;
#pragma unroll 1
    for (int chunk = 0; chunk < block_.chunks; ++chunk) {
      slots.wait_empty();
      arrive_expecting(slots.full(), bytes);
      load_b(slots.data() + Product::kBytesA, slots.full(), chunk);
      load_a(slots.data(), slots.full(), chunk);
      slots.advance();
    }
  }

  // Copies one operand of all chunks of a step. One thread for both would take longer to issue the
  // copies than these take.
  template <bool kOfA, typename Slots>
  LLTM_DEVICE void load_of_step(Slots slots) const {
    const bool early = loads_early(arguments_.problem);
    int chunk = 0, piece = block_.rank;
#pragma unroll 1
    for (int segment = 0; segment < 2; ++segment) {
      const bool of_h = segment == 1;
      if ((kOfA && of_h) || !early) {
        wait_for_previous_kernel();
      }
      const int stop = of_h ? arguments_.chunks.pieces() : arguments_.chunks.x_pieces;
      int k = (piece - segment * arguments_.chunks.x_pieces) * Product::kChunkK;
#pragma unroll 1
      for (; piece < stop; piece += block_.ranks) {
        if (chunk >= Product::kStages) {
          slots.wait_empty();
        }
        arrive_expecting(slots.full(), kOfA ? arguments_.bytes_a : Product::kBytesB);
        if constexpr (kOfA) {
          copy_a(slots.data(), slots.full(), of_h, k);
        } else {
          copy_b(slots.data() + Product::kBytesA, slots.full(), of_h, k, chunk);
        }
        k += block_.ranks * Product::kChunkK;
        ++chunk;
        slots.advance();
      }
    }
  }

  LLTM_DEVICE void copy_a(uint32_t to, uint32_t barrier, bool of_h, int k) const {
    copy_box_2d(to,
                of_h ? &arguments_.maps.old_h : &arguments_.maps.input,
                k,
                static_cast<int>(block_.first_row),
                barrier);
  }
  LLTM_DEVICE void copy_b(uint32_t to, uint32_t barrier, bool of_h, int k, int chunk) const {
    const CUtensorMap* const weights =
        of_h ? &arguments_.maps.weights_h : &arguments_.maps.weights_input;
    if constexpr (Product::kRowTiles == 1) {
      copy_box_3d(to, weights, k, block_.first_hidden, 0, barrier);
    } else if (chunk % Product::kRowTiles == block_.row_tile) {
      copy_box_3d(to, weights, k, block_.first_hidden, 0, barrier, sharing_blocks_);
    }
  }

  // The chunks of a step are distributed to the ranks one by one, those of x first, so that all
  // ranks have the same number of them or one more.
  LLTM_DEVICE Segments::Piece piece_of(int chunk) const {
    return arguments_.chunks.piece(
        Tile::kOfSequence ? block_.rank + chunk * block_.ranks : block_.first_chunk + chunk,
        Product::kChunkK,
        /*x_first=*/Tile::kOfSequence);
  }

  const Arguments& arguments_;
  const ForwardBlock<Tile>& block_;
  uint16_t sharing_blocks_ = 0;
};

/// Of the threads of a block, some load the chunks of K (ForwardLoader), some multiply them, and
/// some finish the cell with the sums (Tile::Finisher). The product says which do what.
template <typename Tile>
__global__ void __launch_bounds__(Tile::Product::kThreads, 1) forward_wgmma_kernel(
    const __grid_constant__ ForwardWgmmaArguments<typename Tile::Problem> arguments) {
#if defined(LLTM_HOPPER)
  using Product = typename Tile::Product;
  extern __shared__ __align__(1024) unsigned char shared[];
  const ForwardProblem& p = arguments.problem;
  const ForwardBlock<Tile> block(arguments);
  if (block.first_row - block.row_tile * Product::kTileM >= p.batch) {
    return;  // as does the whole cluster
  }
  const uint32_t sums_barrier = shared_address(shared + Tile::kSumsBarrier);
  typename Tile::Finisher finisher(typename Tile::Epilogue(arguments.problem),
                                   block.first_row,
                                   block.first_hidden,
                                   block.rank,
                                   block.ranks);
  Product::prepare(shared);
  if (threadIdx.x == 0) {
    finisher.prepare_barrier(sums_barrier);
    prefetch_map(&arguments.maps.weights_h);
    prefetch_map(&arguments.maps.old_h);
    if (p.input_features > 0) {
      prefetch_map(&arguments.maps.weights_input);
      prefetch_map(&arguments.maps.input);
    }
  }
  meet_blocks<Product, Tile::kLoadsByTwo>(block.ranks);
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

  Product product;
  const ForwardLoader<Tile> loader(arguments, block);
  // The threads that multiply have not waited for the previous kernel. In a step they multiply x,
  // and in float32 all of K, before they read here what that kernel wrote.
  const auto fetch = [&] {
    if constexpr (Tile::kOfSequence) {
      wait_for_previous_kernel();
      start_next_kernel();
    }
    finisher.fetch();
  };
  unsigned char* const parts = shared + (block.ranks == 1 ? 0 : Tile::kPartsOffset);
  const auto finish_sums = [&](const auto& sums) {
    finisher.template finish<Product::kMultipliers>(
        sums, parts, sums_barrier, [&](int to) { return block.number_of(to); });
  };
  const KRange range = block.k_range(loads_early(arguments.problem));
  if constexpr (Tile::kApart == 0) {
    product.run(shared, range, loader, fetch, [&] { finish_sums(product.sum); });
  } else {
    // The last sums of the product are those that x and h have alone, in this order.
    constexpr int kSums = Product::kSums, kApart = Tile::kApart, kBoth = kSums - kApart;
    constexpr bool kXFirst = Tile::kOfSequence;
    float sums[kSums + kApart];
    const auto set_apart = [&] {
#pragma unroll
      for (int i = 0; i < kApart; ++i) {
        sums[(kXFirst ? kBoth : kSums) + i] = product.sum[kBoth + i];
        product.sum[kBoth + i] = 0;
      }
    };
    const auto finish = [&] {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        sums[kXFirst && i >= kBoth ? i + kApart : i] = product.sum[i];
      }
      finish_sums(sums);
    };
    product.run(shared,
                range,
                loader,
                fetch,
                finish,
                kXFirst ? block.early_chunks : block.h_chunks,
                set_apart);
  }
#else
  trap_wrong_image();
#endif
}

template <typename Tile>
cudaError_t launch_forward_wgmma_tile(const typename Tile::Problem& problem,
                                      int ranks,
                                      cudaStream_t stream) {
  const ForwardProblem& p = problem;
  using Product = typename Tile::Product;
  if (ranks > Tile::kMaxRanks) {
    return cudaErrorInvalidValue;
  }
  ForwardWgmmaArguments<typename Tile::Problem> arguments{};
  arguments.problem = problem;
  arguments.chunks = segments_of(p.state_size, p.input_columns(), Product::kChunkK);
  arguments.split = split_of_k(ranks, arguments.chunks.pieces(), Product::kTileM);
  arguments.x_split = split_of_k(ranks, arguments.chunks.x_pieces, Product::kTileM);
  const int rows = Product::box_rows(p.batch);
  arguments.bytes_a = rows * 128;
  if (!describe_forward(
          &arguments.maps, p, Product::kArithmetic, rows, Tile::kHidden, Tile::kGates)) {
    return cudaErrorInvalidValue;
  }
  const int64_t row_tiles = tiles_of(p.batch, Product::kTileM);
  constexpr int kRowTiles = Product::kRowTiles;
  const dim3 grid = grid_of_tiles((row_tiles + kRowTiles - 1) / kRowTiles * kRowTiles,
                                  tiles_of(p.state_size, Tile::kHidden),
                                  ranks,
                                  kRowTiles);
  return launch_in_clusters<&forward_wgmma_kernel<Tile>,
                            Product::kThreads,
                            Tile::kBlockBytes,
                            Tile::kClusterBytes,
                            Tile::kFirstStepBytes>(
      arguments,
      grid,
      dim3(ranks, kRowTiles),
      stream,
      Tile::kMeetsNextStep && !loads_early(problem) ? Tile::kFirstStepBytes : 0);
}

/// Whether an epilogue can read and write four neighbors of a row at once.
inline bool in_fours(const ForwardProblem& p, int size) {
  return p.state_size % 4 == 0 && p.old_cell.starts_at_neighbors(4, size) &&
         Matrix{p.bias, 0}.starts_at_neighbors(4, size);
}
inline bool in_fours(const OneStepProblem& p, int size) {
  return in_fours(static_cast<const ForwardProblem&>(p), size) &&
         Matrix{p.bias_hh, 0}.starts_at_neighbors(4, size);
}
inline bool in_fours(const StepProblem& p, int) {
  return p.state_size % 4 == 0;
}

// There are enough stages to fill a multiprocessor with one block, so that blocks of the next
// kernel, which start early, go where no block of this one is. Steps in tiles of 64x8 are the
// exception, except in float32 (kMeetsNextStep). There are enough threads for one item each, with
// the ranks that the plan chooses.
inline constexpr WgmmaTile kLltmFloat32Tiles[] = {
    {.shape = {64, 8}, .stages = 8},
    {.shape = {64, 32}, .stages = 5},
    {.shape = {128, 32}, .stages = 4},
};
template <bool kOfSequence>
inline constexpr WgmmaTile kLltmTiles[] = {
    {.shape = {64, 8}, .stages = kOfSequence ? 8 : 11},
    {.shape = {64, 24}, .stages = 8},
    {.shape = {64, 40}, .stages = 7, .helpers = 32},
    {.shape = {64, 40, 2}, .stages = 7, .helpers = 192},
    {.shape = {128, 32}, .stages = 6},
    {.shape = {128, 32, 2}, .stages = 7},
    {.shape = {128, 64, 2}, .stages = 5},
    {.shape = {192, 32}, .stages = 4},
};
inline constexpr WgmmaTile kLstmFloat32Tiles[] = {
    {.shape = {64, 24}, .stages = 5},
    {.shape = {128, 16}, .stages = 5},
};
inline constexpr WgmmaTile kLstmTiles[] = {
    {.shape = {64, 8}, .stages = 7},
    {.shape = {64, 24}, .stages = 8},
    {.shape = {128, 32}, .stages = 5},
};

// Where it multiplies x, too, and a fourth of an element's sums is set apart.
inline constexpr WgmmaTile kGruFloat32Tiles[] = {
    {.shape = {64, 8}, .stages = 8},
    {.shape = {64, 32}, .stages = 5},
    {.shape = {128, 32}, .stages = 4},
};
template <bool kOfSequence>
inline constexpr WgmmaTile kGruTiles[] = {
    {.shape = {64, 8}, .stages = kOfSequence ? 8 : 11},
    {.shape = {64, 24}, .stages = 8},
    {.shape = {128, 32}, .stages = 5},
    {.shape = {128, 32, 2}, .stages = 7},
};

template <Arithmetic kArithmetic, typename Cell, typename Problem>
cudaError_t launch_forward_wgmma(const Problem& p,
                                 const TileShape& shape,
                                 int ranks,
                                 cudaStream_t stream) {
  constexpr bool kFloat32 = kArithmetic == Arithmetic::kFloat32;
  constexpr int kGates = cell::kGatesOfWeights<Cell>;
  const auto launch = [&](auto tile) {
    using Product = typename HopperProduct<kArithmetic, tile, kGates, kOfSequence<Problem>>::Type;
    return in_fours(p, sizeof(typename Product::Element))
               ? launch_forward_wgmma_tile<ForwardWgmmaTile<Problem, Cell, Product, true>>(
                     p, ranks, stream)
               : launch_forward_wgmma_tile<ForwardWgmmaTile<Problem, Cell, Product, false>>(
                     p, ranks, stream);
  };
  constexpr bool kSetsApart = kSumsOf<Problem, Cell> > kGates;
  if constexpr (kSetsApart && kFloat32) {
    return dispatch<kGruFloat32Tiles>(shape, launch);
  } else if constexpr (kSetsApart) {
    return dispatch<kGruTiles<kOfSequence<Problem>>>(shape, launch);
  } else if constexpr (std::is_same_v<Cell, cell::Lstm> && kFloat32) {
    return dispatch<kLstmFloat32Tiles>(shape, launch);
  } else if constexpr (std::is_same_v<Cell, cell::Lstm>) {
    return dispatch<kLstmTiles>(shape, launch);
  } else if constexpr (kFloat32) {
    return dispatch<kLltmFloat32Tiles>(shape, launch);
  } else {
    return dispatch<kLltmTiles<kOfSequence<Problem>>>(shape, launch);
  }
}

}  // namespace lltm::cuda
