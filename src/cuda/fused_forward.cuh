// The forward of the cell in one launch: a block computes the pre-activations of the same hidden
// columns in all three gates, so that it has an element's z_i, z_o and z_g at hand and finishes it.
// K runs over old_h, then over input; nothing is concatenated, nothing repacked.
#pragma once

#include "cell_finisher.cuh"
#include "launch_cluster.cuh"
#include "overlap.cuh"
#include "tile_product.cuh"

namespace lltm::cuda {

struct FusedForwardArguments {
  FusedForwardParams cell;
  KSplit split;
  int h_chunks;  // of K, how many are old_h's; input's follow
  // Whether rows start at multiples of 16 bytes: old_h, input, and the two column ranges of
  // weights.
  bool old_h_vectors, input_vectors, weights_h_vectors, weights_input_vectors;
};

template <typename Product, int kHidden, int kBlocksPerSm>
__global__ void __launch_bounds__(Product::kThreads, kBlocksPerSm)
    fused_forward_kernel(const __grid_constant__ FusedForwardArguments arguments) {
  using Element = typename Product::Element;
  static_assert(Product::kTileN == 3 * kHidden);
  extern __shared__ __align__(16) unsigned char shared[];
  const FusedForwardParams& p = arguments.cell;

  const int64_t first_row =
      (blockIdx.y + int64_t(gridDim.y) * blockIdx.z) * int64_t(Product::kTileM);
  if (first_row >= p.batch) {
    return;
  }
  const int64_t first_hidden = int64_t(cluster_index()) * kHidden;
  const int rows = at_most(p.batch - first_row, Product::kTileM);
  const int hidden = at_most(p.state_size - first_hidden, kHidden);

  const auto* old_h = static_cast<const Element*>(p.old_h) + first_row * p.old_h_stride;
  const auto* input = static_cast<const Element*>(p.input) + first_row * p.input_stride;
  const auto* weights = static_cast<const Element*>(p.weights) + first_hidden * p.weights_stride;

  constexpr int kChunkK = Product::kChunkK;
  const int rank = cluster_rank();
  const int begin = arguments.split.first_chunk(rank);
  const int end = arguments.split.first_chunk(rank + 1);

  ClusterSums<Product> sums(shared, arguments.split);
  CellFinisher<Element, kHidden, Product::kThreads> finisher(
      p, {first_row, first_hidden, rows, hidden}, sums.first_row(), sums.rows());
  wait_for_previous_kernel();

  using Rows = GateRows<Element, kHidden>;
  BoxCopier<Product::kTileM, kChunkK, Product::kPitchA, Product::kThreads, Element, Box<Element>>
      copier_a;
  BoxCopier<Product::kTileN, kChunkK, Product::kPitchB, Product::kThreads, Element, Rows> copier_b;
  int depth = 0;  // what is left of the segment
  const auto load = [&](Element* a, Element* b, int chunk) {
    if (chunk == begin || chunk == arguments.h_chunks) {
      const bool of_h = chunk < arguments.h_chunks;
      const int64_t k = int64_t(of_h ? chunk : chunk - arguments.h_chunks) * kChunkK;
      depth = static_cast<int>((of_h ? p.state_size : p.input_features) - k);
      copier_a.start({(of_h ? old_h : input) + k,
                      of_h ? p.old_h_stride : p.input_stride,
                      rows,
                      of_h ? arguments.old_h_vectors : arguments.input_vectors});
      copier_b.start({weights + (of_h ? k : p.state_size + k),
                      p.weights_stride,
                      p.state_size,
                      hidden,
                      of_h ? arguments.weights_h_vectors : arguments.weights_input_vectors});
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
cudaError_t launch_fused_forward_tile(const FusedForwardParams& params,
                                      int split,
                                      cudaStream_t stream) {
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
  const auto chunks_of = [](int64_t k) {
    return static_cast<int>((k + Product::kChunkK - 1) / Product::kChunkK);
  };
  const int h_chunks = chunks_of(params.state_size);
  const int chunks = h_chunks + chunks_of(params.input_features);
  const FusedForwardArguments arguments{
      params,
      split_of_k(split, chunks, kTileM),
      h_chunks,
      starts_at_vectors(params.old_h, params.old_h_stride, 0, kSize),
      starts_at_vectors(params.input, params.input_stride, 0, kSize),
      starts_at_vectors(params.weights, params.weights_stride, 0, kSize),
      starts_at_vectors(params.weights, params.weights_stride, params.state_size, kSize)};
  const dim3 grid = grid_of_tiles(
      (params.batch + kTileM - 1) / kTileM, (params.state_size + kHidden - 1) / kHidden, split);
  return launch_in_clusters<&fused_forward_kernel<Product, kHidden, kBlocksPerSm>,
                            Product::kThreads,
                            Product::kSharedBytes,
                            ClusterSums<Product>::kSharedBytes>(arguments, grid, split, stream);
}

// Warps along M, N and K, stages, and blocks a multiprocessor are what measured best for each tile;
// docs/cuda-kernels.md has the figures.
template <Arithmetic kArithmetic>
cudaError_t launch_fused_forward(const FusedForwardParams& params,
                                 ForwardTile tile,
                                 int split,
                                 cudaStream_t stream) {
  constexpr bool kFloat32 = kArithmetic == Arithmetic::kFloat32;  // more registers a product
  switch (tile) {
    case ForwardTile::k16x8:
      return launch_fused_forward_tile<kArithmetic, 16, 8, 1, 1, 4, 6, 2>(params, split, stream);
    case ForwardTile::k64x8:
      return launch_fused_forward_tile<kArithmetic, 64, 8, 4, 1, 2, 6, 2>(params, split, stream);
    case ForwardTile::k64x32: {
      constexpr int kBlocks = kFloat32 ? 1 : 2;
      return launch_fused_forward_tile<kArithmetic, 64, 32, 2, 4, 1, 3, kBlocks>(
          params, split, stream);
    }
    case ForwardTile::k128x32: {
      constexpr int kStages = kFloat32 ? 4 : 3, kBlocks = kFloat32 ? 1 : 2;
      return launch_fused_forward_tile<kArithmetic, 128, 32, 4, 2, 1, kStages, kBlocks>(
          params, split, stream);
    }
    case ForwardTile::kCount:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace lltm::cuda
