// The products of the backward in one launch. d_old_h and d_input are tiles of d_gates @ weights.
// The two column ranges of d_weights are tiles of d_gates.T @ old_h and d_gates.T @ input. The
// first blocks compute the former, whose K is long and shared by clusters; the others compute the
// latter. If the kernel of d_gates starts this one early, which it does after its own wait for all
// earlier kernels, all blocks copy their first chunks of the right operand while d_gates are
// computed.
#pragma once

#include "../../epilogue/write_tile.cuh"
#include "../../problem.h"
#include "../../products/mma_sync.cuh"
#include "../../ptx/cluster.cuh"
#include "../../reduction/cluster_sums.cuh"
#include "../../runtime/launch.cuh"
#include "../../scheduler/split_of_k.h"
#include "../../tile/boxes.cuh"
#include "../../tile/elements.h"
#include "kernels.h"

#include <algorithm>

namespace lltm::cuda {

struct BackwardTilesArguments {
  BackwardProblem cell;
  KSplit split;
  Segments state_columns;   // in tiles, of d_old_h and d_input if wanted
  Segments weight_columns;  // of d_weights
  unsigned state_blocks;    // of d_old_h and d_input, ranks included
  unsigned weight_tiles;
  // Whether four elements of a row of the results may be written at once.
  bool d_old_h_fours, d_input_fours, d_weights_fours;
};

template <typename StateProduct, typename WeightProduct, int kBlocksPerSm>
__global__ void __launch_bounds__(StateProduct::kThreads, kBlocksPerSm)
    backward_tiles_kernel(const __grid_constant__ BackwardTilesArguments arguments) {
  using Element = typename StateProduct::Element;
  constexpr int kThreads = StateProduct::kThreads;
  constexpr int kTileM = StateProduct::kTileM, kTileN = StateProduct::kTileN;
  constexpr int kChunkK = StateProduct::kChunkK;
  static_assert(WeightProduct::kTileM == kTileM && WeightProduct::kTileN == kTileN &&
                WeightProduct::kThreads == kThreads);
  using Rows = Box<Element>;
  extern __shared__ __align__(16) unsigned char shared[];
  const BackwardProblem& p = arguments.cell;
  const int64_t gate_columns = 3 * p.state_size;
  const auto* d_gates = static_cast<const Element*>(p.d_gates);

  if (blockIdx.x < arguments.state_blocks) {
    const auto tiles_a_row = static_cast<unsigned>(arguments.state_columns.pieces());
    const unsigned tile = cluster_index();
    const auto piece = arguments.state_columns.piece(static_cast<int>(tile % tiles_a_row), kTileN);
    const int64_t width = piece.of(p.state_size, p.input_features), first_column = piece.first;
    const int columns = at_most(width - first_column, kTileN);
    const int64_t first_row = int64_t(tile / tiles_a_row) * kTileM;
    const int rows = at_most(p.batch - first_row, kTileM);
    const int begin = arguments.split.first_chunk(cluster_rank());
    const int end = arguments.split.first_chunk(cluster_rank() + 1);
    ClusterSums<StateProduct> sums(shared, arguments.split);

    BoxCopier<kTileM, kChunkK, StateProduct::kPitchA, kThreads, Rows> copier_a;
    BoxCopier<kChunkK, kTileN, StateProduct::kPitchB, kThreads, Rows> copier_b;
    const Matrix& weights = piece.of(p.weights, p.weights_input);
    const auto load = [&](Element* a, Element* b, int chunk, Ready which) {
      const int64_t k = int64_t(chunk) * kChunkK;
      const int depth = at_most(gate_columns - k, kChunkK);
      if (which != Ready::kAvailable) {
        if (chunk == begin) {
          copier_a.start({d_gates + first_row * p.d_gates_stride + k, p.d_gates_stride, rows});
        }
        copier_a.copy(a, depth, kChunkK);
      }
      if (which != Ready::kAwaited) {
        if (chunk == begin) {
          copier_b.start(
              {static_cast<const Element*>(weights.data) + k * weights.stride + first_column,
               weights.stride,
               0});
        }
        copier_b.source_.rows = depth;
        copier_b.copy(b, columns, kChunkK * weights.stride);
      }
    };
    StateProduct product;
    product.run(reinterpret_cast<Element*>(shared), begin, end, /*early=*/true, load, [] {});
    sums.exchange(product);
    const int64_t row = first_row + sums.first_row();
    write_tile<kThreads, kTileN>(
        static_cast<Element*>(piece.of(p.d_old_h, p.d_input)) + row * width + first_column,
        width,
        min(sums.rows(), rows - sums.first_row()),
        columns,
        piece.of(arguments.d_old_h_fours, arguments.d_input_fours),
        [&](float(&values)[4], int r, int column) { sums.template read<4, 1>(values, r, column); });
    sums.finish();
  } else {
    const unsigned tile = blockIdx.x - arguments.state_blocks;
    if (tile >= arguments.weight_tiles) {
      return;
    }
    const auto tiles_a_row = static_cast<unsigned>(arguments.weight_columns.pieces());
    const auto piece = arguments.weight_columns.piece(static_cast<int>(tile % tiles_a_row), kTileN);
    const int64_t first_column = piece.first;
    const int columns = at_most(piece.of(p.state_size, p.input_features) - first_column, kTileN);
    const int64_t first_row = int64_t(tile / tiles_a_row) * kTileM;
    const int rows = at_most(gate_columns - first_row, kTileM);

    BoxCopier<kChunkK, kTileM, WeightProduct::kPitchA, kThreads, Rows> copier_a;
    BoxCopier<kChunkK, kTileN, WeightProduct::kPitchB, kThreads, Rows> copier_b;
    const Matrix& source = piece.of(p.old_h, p.input);
    const auto load = [&](Element* a, Element* b, int chunk, Ready which) {
      const int depth = at_most(p.batch - int64_t(chunk) * kChunkK, kChunkK);
      if (which != Ready::kAvailable) {
        if (chunk == 0) {
          copier_a.start({d_gates + first_row, p.d_gates_stride, 0});
        }
        copier_a.source_.rows = depth;
        copier_a.copy(a, rows, kChunkK * p.d_gates_stride);
      }
      if (which != Ready::kAwaited) {
        if (chunk == 0) {
          copier_b.start(
              {static_cast<const Element*>(source.data) + first_column, source.stride, 0});
        }
        copier_b.source_.rows = depth;
        copier_b.copy(b, columns, kChunkK * source.stride);
      }
    };
    WeightProduct product;
    const int chunks = static_cast<int>((p.batch + kChunkK - 1) / kChunkK);
    product.run(reinterpret_cast<Element*>(shared), 0, chunks, /*early=*/true, load, [] {});
    float* const result = reinterpret_cast<float*>(shared);
    product.store(result);
    __syncthreads();
    const int64_t width = p.state_size + p.input_features;
    write_tile<kThreads, kTileN>(static_cast<Element*>(p.d_weights.of_h) + first_row * width +
                                     piece.of(int64_t{0}, p.state_size) + first_column,
                                 width,
                                 rows,
                                 columns,
                                 arguments.d_weights_fours,
                                 [&](float(&values)[4], int r, int column) {
                                   const auto four =
                                       read_vector<4>(&result[r * WeightProduct::kPitchC + column]);
                                   memcpy(values, four.values, sizeof(four));
                                 });
  }
}

template <Arithmetic kArithmetic, int kTile, int kBlocksPerSm>
cudaError_t launch_backward_tile(const BackwardProblem& params, int split, cudaStream_t stream) {
  using StateProduct = TileProduct<kArithmetic, Major::kK, Major::kOther, kTile, kTile, 2, 4, 1, 3>;
  using WeightProduct =
      TileProduct<kArithmetic, Major::kOther, Major::kOther, kTile, kTile, 2, 4, 1, 3>;
  constexpr int kSize = sizeof(typename StateProduct::Element);
  const int64_t state = params.state_size, features = params.input_features;
  const int64_t gate_columns = 3 * state;
  const bool weights_wanted = params.d_weights.any_wanted();
  const Segments state_columns = segments_of(
      params.d_old_h != nullptr ? state : 0, params.d_input != nullptr ? features : 0, kTile);
  const Segments weight_columns =
      segments_of(weights_wanted ? state : 0, weights_wanted ? features : 0, kTile);
  const unsigned ranks = static_cast<unsigned>(split);
  const unsigned state_blocks =
      static_cast<unsigned>(state_columns.pieces() * tiles_of(params.batch, kTile)) * ranks;
  const unsigned weight_tiles =
      static_cast<unsigned>(weight_columns.pieces() * tiles_of(gate_columns, kTile));
  const auto fours = [](const void* data, int64_t stride) {
    return Matrix{data, stride}.starts_at_neighbors(4, kSize);
  };
  const BackwardTilesArguments arguments{
      .cell = params,
      .split = split_of_k(split, tiles_of(gate_columns, StateProduct::kChunkK), kTile),
      .state_columns = state_columns,
      .weight_columns = weight_columns,
      .state_blocks = state_blocks,
      .weight_tiles = weight_tiles,
      .d_old_h_fours = fours(params.d_old_h, state),
      .d_input_fours = fours(params.d_input, features),
      .d_weights_fours = fours(params.d_weights.of_h, state + features) && state % 4 == 0};
  const unsigned blocks = (state_blocks + weight_tiles + ranks - 1) / ranks * ranks;
  if (blocks == 0) {
    return cudaSuccess;
  }
  return launch_in_clusters<&backward_tiles_kernel<StateProduct, WeightProduct, kBlocksPerSm>,
                            StateProduct::kThreads,
                            std::max(StateProduct::kSharedBytes, WeightProduct::kSharedBytes),
                            std::max(ClusterSums<StateProduct>::kSharedBytes,
                                     WeightProduct::kSharedBytes)>(
      arguments, dim3(blocks), split, stream);
}

template <Arithmetic kArithmetic>
cudaError_t launch_backward_tiles(const BackwardProblem& params,
                                  const GradientPlan& plan,
                                  cudaStream_t stream) {
  return plan.rows == 64 ? launch_backward_tile<kArithmetic, 64, 2>(params, plan.ranks, stream)
                         : launch_backward_tile<kArithmetic, 128, 1>(params, plan.ranks, stream);
}

}  // namespace lltm::cuda
