// The products of the backward in one launch in float32 without TF32, on Hopper: as
// backward_tiles.cuh, with wgmma_three_tf32.cuh's product. Rows have to start at 16 bytes.
#include "../epilogue/write_tile.cuh"
#include "../problem.h"
#include "../products/major.h"
#include "../products/wgmma_three_tf32.cuh"
#include "../ptx/bulk_copy.cuh"
#include "../ptx/cluster.cuh"
#include "../ptx/overlap.cuh"
#include "../ptx/wgmma.cuh"
#include "../reduction/cluster_sums.cuh"
#include "../runtime/launch.cuh"
#include "../runtime/tensor_maps.h"
#include "../scheduler/split_of_k.h"
#include "../tile/elements.cuh"
#include "backward_kernels.h"

#include <algorithm>

namespace lltm::cuda {
namespace {

// The columns of [h | x] that are wanted, in tiles: first old_h's, then input's.
struct ColumnTiles {
  unsigned h, input;
};

struct Float32GradientArguments {
  // Operands of d_old_h and d_input, then those of d_weights.
  CUtensorMap gate_rows, weights_h, weights_input;
  CUtensorMap gate_columns, old_h, input;
  BackwardProblem cell;
  KSplit split;
  ColumnTiles state_columns;   // of d_old_h and d_input
  ColumnTiles weight_columns;  // of d_weights
  unsigned state_blocks;       // what d_old_h and d_input take, ranks counted
  unsigned weight_tiles;
  unsigned weight_tiles_a_block;
  // Whether elements of a row of the results may be written four or two at once; of d_old_h always.
  bool d_input_fours, d_weights_pairs;
};

// At least so many blocks share the tiles of d_weights.
constexpr unsigned kWeightBlocks = 264;

template <typename StateProduct, typename WeightProduct>
__global__ void __launch_bounds__(StateProduct::kThreads, StateProduct::kBlocksPerSm)
    backward_wgmma_float32_kernel(const __grid_constant__ Float32GradientArguments arguments) {
#if defined(LLTM_HOPPER)
  constexpr int kThreads = StateProduct::kThreads;
  constexpr int kTileM = StateProduct::kTileM, kTileN = StateProduct::kTileN;
  constexpr int kChunkK = StateProduct::kChunkK;
  // By another name than backward_tiles.cuh's, which needs less alignment.
  extern __shared__ __align__(1024) unsigned char shared_stages[];
  unsigned char* const shared = shared_stages;
  const BackwardProblem& p = arguments.cell;

  if (blockIdx.x < arguments.state_blocks) {
    const ColumnTiles& tiles = arguments.state_columns;
    const unsigned column_tile = cluster_index() % (tiles.h + tiles.input);
    const bool of_h = column_tile < tiles.h;
    const int first_column = static_cast<int>(of_h ? column_tile : column_tile - tiles.h) * kTileN;
    const int first_row = static_cast<int>(cluster_index() / (tiles.h + tiles.input)) * kTileM;
    StateProduct::prepare(shared);
    ClusterSums<StateProduct> sums(shared, arguments.split);
    __syncthreads();
    wait_for_previous_kernel();
    const CUtensorMap* const weights = of_h ? &arguments.weights_h : &arguments.weights_input;
    const auto load = [&](uint32_t a, uint32_t b, uint32_t barrier, int, int chunk) {
      copy_box_2d(b, weights, first_column, chunk * kChunkK, barrier);
      copy_box_2d(a, &arguments.gate_rows, chunk * kChunkK, first_row, barrier);
    };
    StateProduct product;
    product.run(shared,
                1,
                arguments.split.first_chunk(cluster_rank()),
                arguments.split.first_chunk(cluster_rank() + 1),
                load,
                [](int) {});
    sums.exchange(product);
    const int64_t width = of_h ? p.state_size : p.input_features;
    const int64_t row = int64_t(first_row) + sums.first_row();
    write_tile<kThreads, kTileN>(
        static_cast<float*>(of_h ? p.d_old_h : p.d_input) + row * width + first_column,
        width,
        min(sums.rows(), at_most(p.batch - first_row, kTileM) - sums.first_row()),
        at_most(width - first_column, kTileN),
        of_h || arguments.d_input_fours,
        [&](float(&values)[4], int r, int column) { sums.template read<4, 1>(values, r, column); });
    sums.finish();
  } else {
    const ColumnTiles& columns = arguments.weight_columns;
    const unsigned begin = (blockIdx.x - arguments.state_blocks) * arguments.weight_tiles_a_block;
    if (begin >= arguments.weight_tiles) {
      return;
    }
    const auto first_row = [&](int tile) {
      return static_cast<int>((begin + tile) / (columns.h + columns.input)) * kTileM;
    };
    const auto column_tile = [&](int tile) { return (begin + tile) % (columns.h + columns.input); };
    WeightProduct::prepare(shared);
    __syncthreads();
    wait_for_previous_kernel();
    const auto load = [&](uint32_t a, uint32_t b, uint32_t barrier, int tile, int chunk) {
      const unsigned column = column_tile(tile);
      const bool of_h = column < columns.h;
      copy_box_2d(b,
                  of_h ? &arguments.old_h : &arguments.input,
                  static_cast<int>(of_h ? column : column - columns.h) * kTileN,
                  chunk * kChunkK,
                  barrier);
#pragma unroll
      for (int m = 0; m < kTileM; m += 32) {
        copy_box_2d(a + m / 32 * WeightProduct::kBoxBytesA,
                    &arguments.gate_columns,
                    first_row(tile) + m,
                    chunk * kChunkK,
                    barrier);
      }
    };
    WeightProduct product;
    const auto finish = [&](int tile) {
      const unsigned column = column_tile(tile);
      const bool of_h = column < columns.h;
      const int first_column = static_cast<int>(of_h ? column : column - columns.h) * kTileN;
      const int tile_columns =
          at_most((of_h ? p.state_size : p.input_features) - first_column, kTileN);
      const int rows = at_most(3 * p.state_size - first_row(tile), kTileM);
      const int64_t width = p.state_size + p.input_features;
      float* const to = static_cast<float*>(p.d_weights) + first_row(tile) * width +
                        (of_h ? 0 : p.state_size) + first_column;
      product.each_pair([&](int r, int c, float x, float y) {
        float* const target = to + r * width + c;
        if (r < rows) {
          if (arguments.d_weights_pairs && c + 2 <= tile_columns) {
            *reinterpret_cast<float2*>(target) = make_float2(x, y);
          } else {
            if (c < tile_columns) {
              target[0] = x;
            }
            if (c + 1 < tile_columns) {
              target[1] = y;
            }
          }
        }
      });
    };
    product.run(
        shared,
        static_cast<int>(min(arguments.weight_tiles - begin, arguments.weight_tiles_a_block)),
        0,
        static_cast<int>((p.batch + kChunkK - 1) / kChunkK),
        load,
        finish);
  }
#endif
}

template <int kGroups, int kFeederGroups, int kStages, int kBlocksPerSm>
cudaError_t launch_float32_tile(const BackwardProblem& params, int split, cudaStream_t stream) {
  using StateProduct =
      ThreeTf32Product<Major::kK, Major::kOther, kGroups, kFeederGroups, kStages, kBlocksPerSm>;
  using WeightProduct =
      ThreeTf32Product<Major::kOther, Major::kOther, kGroups, kFeederGroups, kStages, kBlocksPerSm>;
  constexpr int kTileM = StateProduct::kTileM, kTileN = StateProduct::kTileN;
  constexpr int kChunkK = StateProduct::kChunkK;
  const auto tiles = [](int64_t n, int size) {
    return static_cast<unsigned>((n + size - 1) / size);
  };
  const int64_t state = params.state_size, features = params.input_features;
  const int64_t gate_columns = 3 * state;
  Float32GradientArguments arguments;
  arguments.cell = params;
  arguments.split = split_of_k(split, static_cast<int>(tiles(gate_columns, kChunkK)), kTileM);
  arguments.state_columns = {params.d_old_h != nullptr ? tiles(state, kTileN) : 0,
                             params.d_input != nullptr ? tiles(features, kTileN) : 0};
  arguments.weight_columns = {params.d_weights != nullptr ? tiles(state, kTileN) : 0,
                              params.d_weights != nullptr ? tiles(features, kTileN) : 0};
  arguments.d_input_fours = features % 4 == 0;
  arguments.d_weights_pairs = (state + features) % 2 == 0;
  const unsigned ranks = static_cast<unsigned>(split);
  arguments.state_blocks = (arguments.state_columns.h + arguments.state_columns.input) *
                           tiles(params.batch, kTileM) * ranks;
  arguments.weight_tiles =
      (arguments.weight_columns.h + arguments.weight_columns.input) * tiles(gate_columns, kTileM);
  // A block forms the next tile while it writes the one before; and yet there are blocks enough for
  // all multiprocessors to be done at the same time.
  arguments.weight_tiles_a_block = std::clamp(arguments.weight_tiles / kWeightBlocks, 1u, 8u);
  const unsigned weight_blocks = (arguments.weight_tiles + arguments.weight_tiles_a_block - 1) /
                                 arguments.weight_tiles_a_block;
  const unsigned blocks = (arguments.state_blocks + weight_blocks + ranks - 1) / ranks * ranks;
  if (blocks == 0) {
    return cudaSuccess;
  }
  const auto describe = [](CUtensorMap* map,
                           const void* data,
                           int64_t columns,
                           int64_t rows,
                           int64_t stride,
                           int box_columns,
                           int box_rows,
                           BoxLayout layout) {
    return lltm::cuda::describe(map,
                                {.arithmetic = Arithmetic::kFloat32,
                                 .matrix = {data, stride},
                                 .rows = rows,
                                 .columns = columns,
                                 .box_rows = box_rows,
                                 .box_columns = box_columns,
                                 .layout = layout});
  };
  // Operands whose K is not contiguous: 32 rows of M, swizzled, or of N.
  const auto describe_b =
      [&](CUtensorMap* map, const void* data, int64_t columns, int64_t rows, int64_t stride) {
        return describe(map, data, columns, rows, stride, kTileN, kChunkK, BoxLayout::kRows);
      };
  const float* const weights = static_cast<const float*>(params.weights.data);
  if (!describe(&arguments.gate_rows,
                params.d_gates,
                gate_columns,
                params.batch,
                gate_columns,
                kChunkK,
                kTileM,
                BoxLayout::kSwizzled) ||
      !describe(&arguments.gate_columns,
                params.d_gates,
                gate_columns,
                params.batch,
                gate_columns,
                32,
                kChunkK,
                BoxLayout::kSwizzled) ||
      !describe_b(&arguments.weights_h, weights, state, gate_columns, params.weights.stride) ||
      !describe_b(&arguments.weights_input,
                  weights + state,
                  features,
                  gate_columns,
                  params.weights.stride) ||
      !describe_b(&arguments.old_h, params.old_h.data, state, params.batch, params.old_h.stride) ||
      !describe_b(
          &arguments.input, params.input.data, features, params.batch, params.input.stride)) {
    return cudaErrorInvalidValue;
  }
  static_assert(StateProduct::kSharedBytes == WeightProduct::kSharedBytes);
  return launch_in_clusters<&backward_wgmma_float32_kernel<StateProduct, WeightProduct>,
                            StateProduct::kThreads,
                            StateProduct::kSharedBytes,
                            ClusterSums<StateProduct>::kSharedBytes>(
      arguments, dim3(blocks), split, stream);
}

}  // namespace

cudaError_t launch_backward_wgmma_float32(const BackwardProblem& params,
                                          Float32GradientTile tile,
                                          int split,
                                          cudaStream_t stream) {
  switch (tile) {
    case Float32GradientTile::k64x96:
      return launch_float32_tile<1, 1, 2, 2>(params, split, stream);
    case Float32GradientTile::k128x96:
      return launch_float32_tile<2, 2, 4, 1>(params, split, stream);
    case Float32GradientTile::kCount:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace lltm::cuda
