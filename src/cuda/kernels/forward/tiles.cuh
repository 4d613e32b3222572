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
#include "../../runtime/dispatch.h"
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
    const Matrix& weights = piece.of(p.weights, p.weights_input);
    return RowsB{static_cast<const Element*>(weights.data) + first_hidden * weights.stride +
                     piece.first - piece.of(int64_t{0}, p.input_lead),
                 weights.stride,
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

/// A tile of the state that the kernel is compiled for, with what measured best for it.
struct ForwardTile {
  TileShape shape;
  int warps[3];  // along M, N and K
  int stages;
  int blocks;  // per multiprocessor

  constexpr bool operator==(const TileShape& other) const { return shape == other; }
};
template <bool kFloat32>  // which takes more registers
inline constexpr ForwardTile kForwardTiles[] = {
    {.shape = {16, 8}, .warps = {1, 1, 4}, .stages = 6, .blocks = 2},
    {.shape = {64, 8}, .warps = {4, 1, 2}, .stages = 6, .blocks = 2},
    {.shape = {64, 32}, .warps = {2, 4, 1}, .stages = 3, .blocks = kFloat32 ? 1 : 2},
    {.shape = {128, 32},
     .warps = {4, 2, 1},
     .stages = kFloat32 ? 4 : 3,
     .blocks = kFloat32 ? 1 : 2},
};

template <Arithmetic kArithmetic, typename Problem>
cudaError_t launch_forward_tiles(const Problem& problem,
                                 const TileShape& shape,
                                 int ranks,
                                 cudaStream_t stream) {
  const auto launch = [&](auto instance) {
    constexpr ForwardTile kTile = instance;
    using Product = TileProduct<kArithmetic,
                                Major::kK,
                                Major::kK,
                                kTile.shape.rows,
                                cell::Lltm::kGates * kTile.shape.columns,
                                kTile.warps[0],
                                kTile.warps[1],
                                kTile.warps[2],
                                kTile.stages>;
    const ForwardProblem& p = problem;
    const Segments chunks = segments_of(p.state_size, p.input_columns(), Product::kChunkK);
    const ForwardTilesArguments<Problem> arguments{
        .problem = problem,
        .split = split_of_k(ranks, chunks.pieces(), kTile.shape.rows),
        .chunks = chunks};
    const dim3 grid = grid_of_tiles(
        ceil_div(p.batch, kTile.shape.rows), ceil_div(p.state_size, kTile.shape.columns), ranks);
    return launch_in_clusters<&forward_tiles_kernel<Problem, Product, kTile.blocks>,
                              Product::kThreads,
                              Product::kSharedBytes,
                              ClusterSums<Product>::kSharedBytes>(arguments, grid, ranks, stream);
  };
  return dispatch<kForwardTiles<kArithmetic == Arithmetic::kFloat32>>(shape, launch);
}

}  // namespace lltm::cuda
