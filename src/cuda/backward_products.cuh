// The products of the backward in one launch: d_old_h and d_input are tiles of d_gates @ weights,
// d_weights' two column ranges tiles of d_gates.T @ old_h and d_gates.T @ input. The first blocks
// take the former, whose K is long and shared by clusters, the others the latter.
#pragma once

#include "launch_cluster.cuh"
#include "overlap.cuh"
#include "tile_product.cuh"
#include "write_tile.cuh"

namespace lltm::cuda {

// The columns of [h | x] that are wanted, in tiles: first old_h's, then input's.
struct ColumnTiles {
  unsigned h, input;
};

struct BackwardProductsArguments {
  BackwardProductsParams cell;
  KSplit split;
  ColumnTiles state_columns;   // of d_old_h and d_input
  ColumnTiles weight_columns;  // of d_weights
  unsigned state_blocks;       // what d_old_h and d_input take, ranks counted
  unsigned weight_tiles;
  // Whether rows start at multiples of 16 bytes.
  bool gates_vectors, old_h_vectors, input_vectors, weights_h_vectors, weights_input_vectors;
  // Whether four elements of a row of the results may be written at once.
  bool d_old_h_fours, d_input_fours, d_weights_fours;
};

template <typename StateProduct, typename WeightProduct, int kBlocksPerSm>
__global__ void __launch_bounds__(StateProduct::kThreads, kBlocksPerSm)
    backward_products_kernel(const __grid_constant__ BackwardProductsArguments arguments) {
  using Element = typename StateProduct::Element;
  constexpr int kThreads = StateProduct::kThreads;
  constexpr int kTileM = StateProduct::kTileM, kTileN = StateProduct::kTileN;
  constexpr int kChunkK = StateProduct::kChunkK;
  static_assert(WeightProduct::kTileM == kTileM && WeightProduct::kTileN == kTileN &&
                WeightProduct::kThreads == kThreads);
  extern __shared__ __align__(16) unsigned char shared[];
  const BackwardProductsParams& p = arguments.cell;
  const int64_t gate_columns = 3 * p.state_size;
  const auto* d_gates = static_cast<const Element*>(p.d_gates);

  if (blockIdx.x < arguments.state_blocks) {
    const unsigned tiles_a_row = arguments.state_columns.h + arguments.state_columns.input;
    const unsigned tile = cluster_index();
    const unsigned column_tile = tile % tiles_a_row;
    const bool of_h = column_tile < arguments.state_columns.h;
    const int64_t first_column =
        int64_t(of_h ? column_tile : column_tile - arguments.state_columns.h) * kTileN;
    const int columns = at_most((of_h ? p.state_size : p.input_features) - first_column, kTileN);
    const int64_t first_row = int64_t(tile / tiles_a_row) * kTileM;
    const int rows = at_most(p.batch - first_row, kTileM);
    const int begin = arguments.split.first_chunk(cluster_rank());
    const int end = arguments.split.first_chunk(cluster_rank() + 1);
    ClusterSums<StateProduct> sums(shared, arguments.split);
    wait_for_previous_kernel();

    BoxCopier<kTileM, kChunkK, StateProduct::kPitchA, kThreads, Element, Box<Element>> copier_a;
    BoxCopier<kChunkK, kTileN, StateProduct::kPitchB, kThreads, Element, Box<Element>> copier_b;
    const auto load = [&](Element* a, Element* b, int chunk) {
      const int64_t k = int64_t(chunk) * kChunkK;
      if (chunk == begin) {
        copier_a.start(
            {d_gates + first_row * gate_columns + k, gate_columns, rows, arguments.gates_vectors});
        copier_b.start({static_cast<const Element*>(p.weights) + k * p.weights_stride +
                            (of_h ? 0 : p.state_size) + first_column,
                        p.weights_stride,
                        0,
                        of_h ? arguments.weights_h_vectors : arguments.weights_input_vectors});
      }
      const int depth = at_most(gate_columns - k, kChunkK);
      copier_a.copy(a, depth, kChunkK);
      copier_b.source_.rows = depth;
      copier_b.copy(b, columns, kChunkK * p.weights_stride);
    };
    StateProduct product;
    product.run(reinterpret_cast<Element*>(shared), begin, end, load, [] {});
    sums.exchange(product);
    const int64_t width = of_h ? p.state_size : p.input_features;
    const int64_t row = first_row + sums.first_row();
    write_tile<kThreads, kTileN>(
        static_cast<Element*>(of_h ? p.d_old_h : p.d_input) + row * width + first_column,
        width,
        min(sums.rows(), rows - sums.first_row()),
        columns,
        of_h ? arguments.d_old_h_fours : arguments.d_input_fours,
        [&](float(&values)[4], int r, int column) { sums.template read<4, 1>(values, r, column); });
    sums.finish();
  } else {
    const unsigned tile = blockIdx.x - arguments.state_blocks;
    if (tile >= arguments.weight_tiles) {
      return;
    }
    const unsigned tiles_a_row = arguments.weight_columns.h + arguments.weight_columns.input;
    const unsigned column_tile = tile % tiles_a_row;
    const bool of_h = column_tile < arguments.weight_columns.h;
    const int64_t first_column =
        int64_t(of_h ? column_tile : column_tile - arguments.weight_columns.h) * kTileN;
    const int columns = at_most((of_h ? p.state_size : p.input_features) - first_column, kTileN);
    const int64_t first_row = int64_t(tile / tiles_a_row) * kTileM;
    const int rows = at_most(gate_columns - first_row, kTileM);
    wait_for_previous_kernel();

    BoxCopier<kChunkK, kTileM, WeightProduct::kPitchA, kThreads, Element, Box<Element>> copier_a;
    BoxCopier<kChunkK, kTileN, WeightProduct::kPitchB, kThreads, Element, Box<Element>> copier_b;
    const int64_t source_stride = of_h ? p.old_h_stride : p.input_stride;
    const auto load = [&](Element* a, Element* b, int chunk) {
      if (chunk == 0) {
        copier_a.start({d_gates + first_row, gate_columns, 0, arguments.gates_vectors});
        copier_b.start({static_cast<const Element*>(of_h ? p.old_h : p.input) + first_column,
                        source_stride,
                        0,
                        of_h ? arguments.old_h_vectors : arguments.input_vectors});
      }
      const int depth = at_most(p.batch - int64_t(chunk) * kChunkK, kChunkK);
      copier_a.source_.rows = depth;
      copier_a.copy(a, rows, kChunkK * gate_columns);
      copier_b.source_.rows = depth;
      copier_b.copy(b, columns, kChunkK * source_stride);
    };
    WeightProduct product;
    const int chunks = static_cast<int>((p.batch + kChunkK - 1) / kChunkK);
    product.run(reinterpret_cast<Element*>(shared), 0, chunks, load, [] {});
    float* const result = reinterpret_cast<float*>(shared);
    product.store(result);
    __syncthreads();
    const int64_t width = p.state_size + p.input_features;
    write_tile<kThreads, kTileN>(static_cast<Element*>(p.d_weights) + first_row * width +
                                     (of_h ? 0 : p.state_size) + first_column,
                                 width,
                                 rows,
                                 columns,
                                 arguments.d_weights_fours,
                                 [&](float(&values)[4], int r, int column) {
                                   const float4 four = *reinterpret_cast<const float4*>(
                                       &result[r * WeightProduct::kPitchC + column]);
                                   values[0] = four.x;
                                   values[1] = four.y;
                                   values[2] = four.z;
                                   values[3] = four.w;
                                 });
  }
}

template <Arithmetic kArithmetic,
          int kTile,
          int kWarpsM,
          int kWarpsN,
          int kStages,
          int kBlocksPerSm>
cudaError_t launch_backward_products_tile(const BackwardProductsParams& params,
                                          int split,
                                          cudaStream_t stream) {
  using StateProduct = TileProduct<kArithmetic,
                                   Major::kK,
                                   Major::kOther,
                                   kTile,
                                   kTile,
                                   kWarpsM,
                                   kWarpsN,
                                   1,
                                   kStages>;
  using WeightProduct = TileProduct<kArithmetic,
                                    Major::kOther,
                                    Major::kOther,
                                    kTile,
                                    kTile,
                                    kWarpsM,
                                    kWarpsN,
                                    1,
                                    kStages>;
  constexpr int kSize = sizeof(typename StateProduct::Element);
  const auto tiles = [](int64_t n) { return static_cast<unsigned>((n + kTile - 1) / kTile); };
  const int64_t state = params.state_size, features = params.input_features;
  const int64_t gate_columns = 3 * state;
  const ColumnTiles state_columns{params.d_old_h != nullptr ? tiles(state) : 0,
                                  params.d_input != nullptr ? tiles(features) : 0};
  const ColumnTiles weight_columns{params.d_weights != nullptr ? tiles(state) : 0,
                                   params.d_weights != nullptr ? tiles(features) : 0};
  const unsigned state_blocks =
      (state_columns.h + state_columns.input) * tiles(params.batch) * static_cast<unsigned>(split);
  const unsigned weight_tiles = (weight_columns.h + weight_columns.input) * tiles(gate_columns);
  const auto fours = [](const void* data, int64_t stride, int64_t offset) {
    return (reinterpret_cast<uintptr_t>(data) / kSize + offset) % 4 == 0 && stride % 4 == 0;
  };
  const int64_t width = state + features;
  const BackwardProductsArguments arguments{
      params,
      split_of_k(
          split,
          static_cast<int>((gate_columns + StateProduct::kChunkK - 1) / StateProduct::kChunkK),
          kTile),
      state_columns,
      weight_columns,
      state_blocks,
      weight_tiles,
      starts_at_vectors(params.d_gates, gate_columns, 0, kSize),
      starts_at_vectors(params.old_h, params.old_h_stride, 0, kSize),
      starts_at_vectors(params.input, params.input_stride, 0, kSize),
      starts_at_vectors(params.weights, params.weights_stride, 0, kSize),
      starts_at_vectors(params.weights, params.weights_stride, state, kSize),
      fours(params.d_old_h, state, 0),
      fours(params.d_input, features, 0),
      fours(params.d_weights, width, 0) && state % 4 == 0};
  const unsigned ranks = static_cast<unsigned>(split);
  const unsigned blocks = (state_blocks + weight_tiles + ranks - 1) / ranks * ranks;
  if (blocks == 0) {
    return cudaSuccess;
  }
  constexpr auto larger = [](int a, int b) { return a > b ? a : b; };
  return launch_in_clusters<&backward_products_kernel<StateProduct, WeightProduct, kBlocksPerSm>,
                            StateProduct::kThreads,
                            larger(StateProduct::kSharedBytes, WeightProduct::kSharedBytes),
                            larger(ClusterSums<StateProduct>::kSharedBytes,
                                   WeightProduct::kSharedBytes)>(
      arguments, dim3(blocks), split, stream);
}

template <Arithmetic kArithmetic>
cudaError_t launch_backward_products(const BackwardProductsParams& params,
                                     ProductTile tile,
                                     int split,
                                     cudaStream_t stream) {
  switch (tile) {
    case ProductTile::k64x64:
      return launch_backward_products_tile<kArithmetic, 64, 2, 4, 3, 2>(params, split, stream);
    case ProductTile::k128x128:
      return launch_backward_products_tile<kArithmetic, 128, 2, 4, 3, 1>(params, split, stream);
    case ProductTile::kCount:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace lltm::cuda
