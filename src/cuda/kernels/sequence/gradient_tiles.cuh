// A step of the sequence's backward in one launch: tiles of d_gates[last_t] @ W_h, the gradient of
// h, whose epilogue computes d_gates[t]. The blocks of a cluster share the K of a tile.
//
// Steps follow each other without a kernel in between. A step starts the next one when its own wait
// is over, that is, when all earlier steps are complete. While it runs, the next one reads what no
// step writes: weights, and operands of its elements.
#pragma once

#include "../../epilogue/math.cuh"
#include "../../epilogue/sequence_gradients.cuh"
#include "../../products/mma_sync.cuh"
#include "../../ptx/cluster.cuh"
#include "../../ptx/overlap.cuh"
#include "../../reduction/cluster_sums.cuh"
#include "../../runtime/launch.cuh"
#include "../../scheduler/split_of_k.h"
#include "../../tile/boxes.cuh"
#include "../../tile/shapes.h"
#include "kernels.h"

namespace lltm::cuda {

template <typename Element>
struct SequenceGradientTilesArguments {
  SequenceGradientsParams<Element> step;
  Matrix weights_h;
  KSplit split;
  unsigned column_tiles;
};

template <typename Product, int kAtOnce>
__global__ void __launch_bounds__(Product::kThreads, 2) sequence_gradient_tiles_kernel(
    const __grid_constant__ SequenceGradientTilesArguments<typename Product::Element> arguments) {
  using Element = typename Product::Element;
  using Epilogue = SequenceGradientsEpilogue<Element, ProductMath<Product::kArithmetic>>;
  constexpr int kThreads = Product::kThreads, kChunkK = Product::kChunkK;
  constexpr int kTileM = Product::kTileM, kTileN = Product::kTileN;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* const pipeline = reinterpret_cast<Element*>(shared);
  const SequenceGradientsParams<Element>& p = arguments.step;
  const Matrix& weights = arguments.weights_h;
  const int64_t gate_columns = 3 * p.state_size;

  const unsigned tile = cluster_index();
  const int64_t first_column = int64_t(tile % arguments.column_tiles) * kTileN;
  const int64_t first_row = int64_t(tile / arguments.column_tiles) * kTileM;
  const int columns = at_most(p.state_size - first_column, kTileN);
  const int rows = at_most(p.rows - first_row, kTileM);
  const int begin = arguments.split.first_chunk(cluster_rank());
  const int end = arguments.split.first_chunk(cluster_rank() + 1);
  ClusterSums<Product> sums(shared, arguments.split);

  BoxCopier<kChunkK, kTileN, Product::kPitchB, kThreads, Box<Element>> weights_copier;
  weights_copier.start({static_cast<const Element*>(weights.data) +
                            int64_t(begin) * kChunkK * weights.stride + first_column,
                        weights.stride,
                        0});
  BoxCopier<kTileM, kChunkK, Product::kPitchA, kThreads, Box<Element>> gates_copier;
  gates_copier.start({p.all_d_gates + (p.last_t * p.rows + first_row) * p.d_gates_stride +
                          int64_t(begin) * kChunkK,
                      p.d_gates_stride,
                      rows});
  const auto load = [&](Element* a, Element* b, int chunk, Ready which) {
    const int depth = at_most(gate_columns - int64_t(chunk) * kChunkK, kChunkK);
    if (which != Ready::kAvailable) {
      gates_copier.copy(a, depth, kChunkK);
    }
    if (which != Ready::kAwaited) {
      weights_copier.source_.rows = depth;
      weights_copier.copy(b, columns, kChunkK * weights.stride);
    }
  };
  StepFinisher<Epilogue, kTileN, kThreads, kAtOnce> elements(
      Epilogue(p), first_row, first_column, sums.first_row(), sums.rows());
  elements.fetch();
  Product product;
  const auto started = [&] {
    start_next_kernel();
    elements.fetch_carried();
  };
  product.run(pipeline, begin, end, /*early=*/true, load, started);
  sums.exchange(product);
  elements.finish(sums);
  sums.finish();
}

template <typename Product, int kAtOnce>
cudaError_t launch_sequence_gradient_tile(
    const SequenceGradientsParams<typename Product::Element>& params,
    const Matrix& weights_h,
    int ranks,
    cudaStream_t stream) {
  const int chunks = tiles_of(3 * params.state_size, Product::kChunkK);
  const int column_tiles = tiles_of(params.state_size, Product::kTileN);
  const SequenceGradientTilesArguments<typename Product::Element> arguments{
      .step = params,
      .weights_h = weights_h,
      .split = split_of_k(ranks, chunks, Product::kTileM),
      .column_tiles = static_cast<unsigned>(column_tiles)};
  const int64_t blocks = int64_t(tiles_of(params.rows, Product::kTileM)) * column_tiles * ranks;
  return launch_in_clusters<&sequence_gradient_tiles_kernel<Product, kAtOnce>,
                            Product::kThreads,
                            Product::kSharedBytes,
                            ClusterSums<Product>::kSharedBytes>(
      arguments, grid_of(blocks), ranks, stream);
}

template <Arithmetic kArithmetic>
cudaError_t launch_sequence_gradient_tiles(
    const SequenceGradientsParams<TensorElement<kArithmetic>>& params,
    const Matrix& weights_h,
    const TileShape& tile,
    int ranks,
    cudaStream_t stream) {
  // There are enough stages to load the weights of a rank before the step starts, if these are few,
  // and room for two blocks per multiprocessor.
  if (tile == TileShape{32, 32}) {
    using Product = TileProduct<kArithmetic, Major::kK, Major::kOther, 32, 32, 2, 2, 2, 8>;
    return launch_sequence_gradient_tile<Product, 1>(params, weights_h, ranks, stream);
  }
  if (tile == TileShape{64, 64}) {
    using Product = TileProduct<kArithmetic, Major::kK, Major::kOther, 64, 64, 2, 4, 1, 4>;
    return launch_sequence_gradient_tile<Product, 4>(params, weights_h, ranks, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace lltm::cuda
