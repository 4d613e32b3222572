// The forward of the cell, or of a step of a sequence, in one launch. A block computes the
// pre-activations of the same hidden columns in all three gates, so it has all three of an element
// and finishes it. K runs over old_h and then over input, in a step over input first; nothing is
// concatenated.
#pragma once

#include "../../epilogue/cell.cuh"
#include "../../epilogue/element_finisher.cuh"
#include "../../epilogue/step.cuh"
#include "../../problem.h"
#include "../../products/mma_sync.cuh"
#include "../../ptx/cluster.cuh"
#include "../../ptx/overlap.cuh"
#include "../../reduction/cluster_sums.cuh"
#include "../../runtime/launch.cuh"
#include "../../scheduler/split_of_k.h"
#include "../../tile/boxes.cuh"
#include "../../tile/elements.h"
#include "kernels.h"

namespace lltm::cuda {

template <typename Problem>
struct ForwardTilesArguments {
  Problem problem;
  KSplit split;
  Segments chunks;  // of K
};

template <typename Problem, typename Product, int kBlocksPerSm>
__global__ void __launch_bounds__(Product::kThreads, kBlocksPerSm)
    forward_tiles_kernel(const __grid_constant__ ForwardTilesArguments<Problem> arguments) {
  using Element = typename Product::Element;
  constexpr int kHidden = Product::kTileN / cell::Lltm::kGates;
  extern __shared__ __align__(16) unsigned char shared[];
  const ForwardProblem& p = arguments.problem;

  const int64_t first_row =
      (blockIdx.y + int64_t(gridDim.y) * blockIdx.z) * int64_t(Product::kTileM);
  if (first_row >= p.batch) {
    return;
  }
  const int64_t first_hidden = int64_t(cluster_index()) * kHidden;
  const int rows = at_most(p.batch - first_row, Product::kTileM);
  const int hidden = at_most(p.state_size - first_hidden, kHidden);

  const auto* old_h = static_cast<const Element*>(p.old_h.data) + first_row * p.old_h.stride;
  const auto* input = static_cast<const Element*>(p.input.data) + first_row * p.input.stride;
  const auto* weights =
      static_cast<const Element*>(p.weights.data) + first_hidden * p.weights.stride;

  constexpr int kChunkK = Product::kChunkK;
  const int rank = cluster_rank();
  const int begin = arguments.split.first_chunk(rank);
  const int end = arguments.split.first_chunk(rank + 1);

  ClusterSums<Product> sums(shared, arguments.split);
  using Epilogue = EpilogueOf<Problem, cell::Lltm, Element, cell::StandardMath, 1, 1>;
  ElementFinisher<Epilogue, kHidden, Product::kThreads> finisher(
      Epilogue(arguments.problem), first_row, first_hidden, sums.first_row(), sums.rows());
  if constexpr (!kOfSequence<Problem>) {
    wait_for_previous_kernel();
  }

  using RowsA = Box<Element>;
  using RowsB = GateRows<Element, kHidden>;
  constexpr int kThreads = Product::kThreads;
  BoxCopier<Product::kTileM, kChunkK, Product::kPitchA, kThreads, RowsA> copier_a;
  BoxCopier<Product::kTileN, kChunkK, Product::kPitchB, kThreads, RowsB> copier_b;
  // In a sequence, the chunks of x come first, since x is available before h.
  const auto piece_at = [&](int chunk) {
    return arguments.chunks.piece(chunk, kChunkK, /*x_first=*/kOfSequence<Problem>);
  };
  const auto begins_segment = [&](int chunk) {
    return chunk == begin ||
           chunk == (kOfSequence<Problem> ? arguments.chunks.x_pieces : arguments.chunks.h_pieces);
  };
  // The operands from a piece of K on.
  const auto rows_a = [&](const Segments::Piece& piece) {
    return RowsA{piece.of(old_h, input) + piece.first, piece.of(p.old_h, p.input).stride, rows};
  };
  const auto rows_b = [&](const Segments::Piece& piece) {
    return RowsB{weights + piece.of(int64_t{0}, p.input_column() - p.input_lead) + piece.first,
                 p.weights.stride,
                 p.state_size,
                 hidden};
  };
  int depth_a = 0, depth_b = 0;  // columns left in the segment
  const auto load = [&](auto& copier, int& depth, const auto& rows_of, Element* to, int chunk) {
    if (begins_segment(chunk)) {
      const auto piece = piece_at(chunk);
      depth = static_cast<int>(piece.of(p.state_size, p.input_columns()) - piece.first);
      copier.start(rows_of(piece));
    }
    copier.copy(to, depth, kChunkK);
    depth -= kChunkK;
  };
  const auto fetch = [&] { finisher.fetch(); };
  Product product;
  auto* const slots = reinterpret_cast<Element*>(shared);
  product.template run<kOfSequence<Problem>>(
      slots,
      begin,
      end,
      loads_early(arguments.problem),
      [&](Element* a, Element* b, int chunk, Ready which) {
        if (which == Ready::kAll || (which == Ready::kAwaited) == piece_at(chunk).of_h) {
          load(copier_a, depth_a, rows_a, a, chunk);
        }
        if (which != Ready::kAwaited) {
          load(copier_b, depth_b, rows_b, b, chunk);
        }
      },
      fetch);
  if constexpr (kHidden == 8) {
    // Kernels with small tiles are so short that an early start of the next one matters. After
    // larger tiles, its blocks would crowd onto the first multiprocessors with room.
    start_next_kernel();
  }
  sums.exchange(product);
  finisher.finish(sums);
  sums.finish();
}

template <Arithmetic kArithmetic,
          int kTileM,
          int kHidden,
          int kWarpsM,
          int kWarpsN,
          int kWarpsK,
          int kStages,
          int kBlocksPerSm,
          typename Problem>
cudaError_t launch_forward_tile(const Problem& problem, int ranks, cudaStream_t stream) {
  const ForwardProblem& params = problem;
  using Product = TileProduct<kArithmetic,
                              Major::kK,
                              Major::kK,
                              kTileM,
                              cell::Lltm::kGates * kHidden,
                              kWarpsM,
                              kWarpsN,
                              kWarpsK,
                              kStages>;
  const Segments chunks = segments_of(params.state_size, params.input_columns(), Product::kChunkK);
  const ForwardTilesArguments<Problem> arguments{
      .problem = problem, .split = split_of_k(ranks, chunks.pieces(), kTileM), .chunks = chunks};
  const dim3 grid =
      grid_of_tiles(ceil_div(params.batch, kTileM), ceil_div(params.state_size, kHidden), ranks);
  return launch_in_clusters<&forward_tiles_kernel<Problem, Product, kBlocksPerSm>,
                            Product::kThreads,
                            Product::kSharedBytes,
                            ClusterSums<Product>::kSharedBytes>(arguments, grid, ranks, stream);
}

// Warps along M, N and K, stages, and blocks per multiprocessor are those that measured best for
// each tile.
template <Arithmetic kArithmetic, typename Problem>
cudaError_t launch_forward_tiles(const Problem& params,
                                 const TileShape& tile,
                                 int ranks,
                                 cudaStream_t stream) {
  constexpr bool kFloat32 = kArithmetic == Arithmetic::kFloat32;  // which takes more registers
  constexpr int kBlocks = kFloat32 ? 1 : 2, kStages = kFloat32 ? 4 : 3;
  if (tile == TileShape{16, 8}) {
    return launch_forward_tile<kArithmetic, 16, 8, 1, 1, 4, 6, 2>(params, ranks, stream);
  }
  if (tile == TileShape{64, 8}) {
    return launch_forward_tile<kArithmetic, 64, 8, 4, 1, 2, 6, 2>(params, ranks, stream);
  }
  if (tile == TileShape{64, 32}) {
    return launch_forward_tile<kArithmetic, 64, 32, 2, 4, 1, 3, kBlocks>(params, ranks, stream);
  }
  if (tile == TileShape{128, 32}) {
    return launch_forward_tile<kArithmetic, 128, 32, 4, 2, 1, kStages, kBlocks>(
        params, ranks, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace lltm::cuda
