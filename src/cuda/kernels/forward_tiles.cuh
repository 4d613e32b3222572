// The forward of the cell in one launch: a block computes the pre-activations of the same hidden
// columns in all three gates, so that it has an element's z_i, z_o and z_g at hand and finishes it.
// K runs over old_h, then over input; nothing is concatenated, nothing repacked.
#pragma once

#include "../epilogue/cell.cuh"
#include "../epilogue/elements.cuh"
#include "../problem.h"
#include "../products/major.h"
#include "../products/mma_sync.cuh"
#include "../ptx/cluster.cuh"
#include "../ptx/overlap.cuh"
#include "../reduction/cluster_sums.cuh"
#include "../runtime/launch.cuh"
#include "../scheduler/split_of_k.h"
#include "../scheduler/tiles.h"
#include "../tile/boxes.cuh"
#include "../tile/elements.cuh"
#include "forward_kernels.h"

namespace lltm::cuda {

struct ForwardTilesArguments {
  ForwardProblem cell;
  KSplit split;
  Segments chunks;  // of K
  // Whether rows start at multiples of 16 bytes: old_h, input, and the two column ranges of
  // weights.
  bool old_h_vectors, input_vectors, weights_h_vectors, weights_input_vectors;
};

template <typename Product, int kHidden, int kBlocksPerSm>
__global__ void __launch_bounds__(Product::kThreads, kBlocksPerSm)
    forward_tiles_kernel(const __grid_constant__ ForwardTilesArguments arguments) {
  using Element = typename Product::Element;
  static_assert(Product::kTileN == 3 * kHidden);
  extern __shared__ __align__(16) unsigned char shared[];
  const ForwardProblem& p = arguments.cell;

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
  using Epilogue = CellEpilogue<Element, cell::StandardMath, 1, 1, true>;
  ElementFinisher<Epilogue, kHidden, Product::kThreads> finisher(
      Epilogue(p), first_row, first_hidden, sums.first_row(), sums.rows());
  wait_for_previous_kernel();

  using Rows = GateRows<Element, kHidden>;
  BoxCopier<Product::kTileM, kChunkK, Product::kPitchA, Product::kThreads, Element, Box<Element>>
      copier_a;
  BoxCopier<Product::kTileN, kChunkK, Product::kPitchB, Product::kThreads, Element, Rows> copier_b;
  int depth = 0;  // what is left of the segment
  const auto load = [&](Element* a, Element* b, int chunk) {
    if (chunk == begin || chunk == arguments.chunks.h_pieces) {
      const auto piece = arguments.chunks.piece(chunk, kChunkK);
      const int64_t k = piece.first;
      depth = static_cast<int>(piece.of(p.state_size, p.input_features) - k);
      copier_a.start({piece.of(old_h, input) + k,
                      piece.of(p.old_h, p.input).stride,
                      rows,
                      piece.of(arguments.old_h_vectors, arguments.input_vectors)});
      copier_b.start({weights + piece.of(int64_t{0}, p.state_size) + k,
                      p.weights.stride,
                      p.state_size,
                      hidden,
                      piece.of(arguments.weights_h_vectors, arguments.weights_input_vectors)});
    }
    copier_a.copy(a, depth, kChunkK);
    copier_b.copy(b, depth, kChunkK);
    depth -= kChunkK;
  };
  Product product;
  product.run(reinterpret_cast<Element*>(shared), begin, end, load, [&] { finisher.fetch(); });
  if constexpr (kHidden == 8) {
    // Kernels of small tiles are short enough for the start of the next one to matter; behind
    // larger ones its blocks would crowd on the first multiprocessors that have room.
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
          int kBlocksPerSm>
cudaError_t launch_forward_tile(const ForwardProblem& params, int split, cudaStream_t stream) {
  using Product = TileProduct<kArithmetic,
                              Major::kK,
                              Major::kK,
                              kTileM,
                              3 * kHidden,
                              kWarpsM,
                              kWarpsN,
                              kWarpsK,
                              kStages>;
  constexpr int kSize = sizeof(typename Product::Element);
  const Segments chunks = segments_of(params.state_size, params.input_features, Product::kChunkK);
  const ForwardTilesArguments arguments{
      .cell = params,
      .split = split_of_k(split, chunks.pieces(), kTileM),
      .chunks = chunks,
      .old_h_vectors = params.old_h.starts_at_vectors(kSize),
      .input_vectors = params.input.starts_at_vectors(kSize),
      .weights_h_vectors = params.weights.starts_at_vectors(kSize),
      .weights_input_vectors = params.weights.starts_at_vectors(kSize, params.state_size)};
  const dim3 grid = grid_of_tiles(
      (params.batch + kTileM - 1) / kTileM, (params.state_size + kHidden - 1) / kHidden, split);
  return launch_in_clusters<&forward_tiles_kernel<Product, kHidden, kBlocksPerSm>,
                            Product::kThreads,
                            Product::kSharedBytes,
                            ClusterSums<Product>::kSharedBytes>(arguments, grid, split, stream);
}

// Warps along M, N and K, stages, and blocks a multiprocessor are what measured best for each tile;
// docs/cuda-kernels.md has the figures.
template <Arithmetic kArithmetic>
cudaError_t launch_forward_tiles(const ForwardProblem& params,
                                 ForwardTile tile,
                                 int split,
                                 cudaStream_t stream) {
  constexpr bool kFloat32 = kArithmetic == Arithmetic::kFloat32;  // more registers a product
  switch (tile) {
    case ForwardTile::k16x8:
      return launch_forward_tile<kArithmetic, 16, 8, 1, 1, 4, 6, 2>(params, split, stream);
    case ForwardTile::k64x8:
      return launch_forward_tile<kArithmetic, 64, 8, 4, 1, 2, 6, 2>(params, split, stream);
    case ForwardTile::k64x32: {
      constexpr int kBlocks = kFloat32 ? 1 : 2;
      return launch_forward_tile<kArithmetic, 64, 32, 2, 4, 1, 3, kBlocks>(params, split, stream);
    }
    case ForwardTile::k128x32: {
      constexpr int kStages = kFloat32 ? 4 : 3, kBlocks = kFloat32 ? 1 : 2;
      return launch_forward_tile<kArithmetic, 128, 32, 4, 2, 1, kStages, kBlocks>(
          params, split, stream);
    }
    case ForwardTile::kCount:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace lltm::cuda
