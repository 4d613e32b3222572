// The products of the backward in float32 without TF32 on Hopper: as tiles.cuh, with the
// product of wgmma_three_tf32.cuh. For a long batch, d_weights are computed in parts of the batch,
// which another kernel adds. d_gates have rows that TMA can describe. If it cannot describe another
// operand, all of these are read from global memory.
#include "../../epilogue/write_tile.cuh"
#include "../../problem.h"
#include "../../products/major.h"
#include "../../products/wgmma_three_tf32.cuh"
#include "../../ptx/bulk_copy.cuh"
#include "../../ptx/cluster.cuh"
#include "../../ptx/overlap.cuh"
#include "../../ptx/wgmma.cuh"
#include "../../reduction/cluster_sums.cuh"
#include "../../runtime/launch.cuh"
#include "../../runtime/tensor_maps.h"
#include "../../scheduler/split_of_k.h"
#include "../../tile/elements.cuh"
#include "../../tile/vectors.cuh"
#include "kernels.h"

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
  unsigned state_blocks;       // of d_old_h and d_input, ranks included
  // A unit of d_weights is a tile and a part of the batch. All tiles of a part come before those of
  // the next part.
  unsigned weight_tiles, weight_units;
  unsigned weight_units_a_block;
  int chunks_a_part;
  float* weight_parts;  // each a matrix like d_weights; d_weights itself if there is only one
  // Whether four or two elements of a row of the results may be written at once.
  bool d_old_h_fours, d_input_fours, d_weights_pairs;
};

/// Column n, or the last one, of a chunk of rows.
template <int kChunkK>
__device__ __forceinline__ ColumnOfB
column_of(const Matrix& matrix, int64_t rows, int64_t columns, int n, int chunk) {
  const int64_t first = int64_t(chunk) * kChunkK;
  return {
      static_cast<const float*>(matrix.data) + first * matrix.stride + min(int64_t(n), columns - 1),
      matrix.stride,
      static_cast<int>(min(rows - first, int64_t(kChunkK)))};
}

/// kReadsB: rows of weights, old_h and input may start anywhere.
template <typename StateProduct, typename WeightProduct, bool kReadsB>
__global__ void __launch_bounds__(StateProduct::kThreads, StateProduct::kBlocksPerSm)
    backward_wgmma_float32_kernel(const __grid_constant__ Float32GradientArguments arguments) {
#if defined(LLTM_HOPPER)
  constexpr int kThreads = StateProduct::kThreads;
  constexpr int kTileM = StateProduct::kTileM, kTileN = StateProduct::kTileN;
  constexpr int kChunkK = StateProduct::kChunkK;
  // The name differs from that in tiles.cuh, whose alignment is smaller.
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
    const int64_t width = of_h ? p.state_size : p.input_features;
    const auto load = [&](uint32_t a, uint32_t b, uint32_t barrier, int, int chunk) {
      if constexpr (!kReadsB) {
        copy_box_2d(b, weights, first_column, chunk * kChunkK, barrier);
      }
      copy_box_2d(a, &arguments.gate_rows, chunk * kChunkK, first_row, barrier);
    };
    StateProduct product;
    const int begin = arguments.split.first_chunk(cluster_rank());
    const int end = arguments.split.first_chunk(cluster_rank() + 1);
    if constexpr (kReadsB) {
      const Matrix of{static_cast<const float*>(p.weights.data) + (of_h ? 0 : p.state_size),
                      p.weights.stride};
      product.run_reading_b(
          shared,
          1,
          begin,
          end,
          load,
          [&](int n, int, int chunk) {
            return column_of<kChunkK>(of, 3 * p.state_size, width, first_column + n, chunk);
          },
          [](int) {});
    } else {
      product.run(shared, 1, begin, end, load, [](int) {});
    }
    sums.exchange(product);
    const int64_t row = int64_t(first_row) + sums.first_row();
    write_tile<kThreads, kTileN>(
        static_cast<float*>(of_h ? p.d_old_h : p.d_input) + row * width + first_column,
        width,
        min(sums.rows(), at_most(p.batch - first_row, kTileM) - sums.first_row()),
        at_most(width - first_column, kTileN),
        of_h ? arguments.d_old_h_fours : arguments.d_input_fours,
        [&](float(&values)[4], int r, int column) { sums.template read<4, 1>(values, r, column); });
    sums.finish();
  } else {
    const ColumnTiles& columns = arguments.weight_columns;
    const unsigned begin = (blockIdx.x - arguments.state_blocks) * arguments.weight_units_a_block;
    if (begin >= arguments.weight_units) {
      return;
    }
    const auto part = [&](int unit) {
      return static_cast<int>((begin + unit) / arguments.weight_tiles);
    };
    const auto tile = [&](int unit) { return (begin + unit) % arguments.weight_tiles; };
    const auto first_row = [&](int unit) {
      return static_cast<int>(tile(unit) / (columns.h + columns.input)) * kTileM;
    };
    const auto column_tile = [&](int unit) { return tile(unit) % (columns.h + columns.input); };
    WeightProduct::prepare(shared);
    __syncthreads();
    wait_for_previous_kernel();
    // The last part may extend beyond the batch, where TMA reads zeros.
    const auto load = [&](uint32_t a, uint32_t b, uint32_t barrier, int unit, int chunk) {
      const int first = (part(unit) * arguments.chunks_a_part + chunk) * kChunkK;
      if constexpr (!kReadsB) {
        const unsigned column = column_tile(unit);
        const bool of_h = column < columns.h;
        copy_box_2d(b,
                    of_h ? &arguments.old_h : &arguments.input,
                    static_cast<int>(of_h ? column : column - columns.h) * kTileN,
                    first,
                    barrier);
      }
#pragma unroll
      for (int m = 0; m < kTileM; m += 32) {
        copy_box_2d(a + m / 32 * WeightProduct::kBoxBytesA,
                    &arguments.gate_columns,
                    first_row(unit) + m,
                    first,
                    barrier);
      }
    };
    WeightProduct product;
    const auto finish = [&](int unit) {
      const unsigned column = column_tile(unit);
      const bool of_h = column < columns.h;
      const int first_column = static_cast<int>(of_h ? column : column - columns.h) * kTileN;
      const int tile_columns =
          at_most((of_h ? p.state_size : p.input_features) - first_column, kTileN);
      const int rows = at_most(3 * p.state_size - first_row(unit), kTileM);
      const int64_t width = p.state_size + p.input_features;
      float* const to = arguments.weight_parts +
                        (part(unit) * 3 * p.state_size + first_row(unit)) * width +
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
    const auto units =
        static_cast<int>(min(arguments.weight_units - begin, arguments.weight_units_a_block));
    if constexpr (kReadsB) {
      product.run_reading_b(
          shared,
          units,
          0,
          arguments.chunks_a_part,
          load,
          [&](int n, int unit, int chunk) {
            const unsigned column = column_tile(unit);
            const bool of_h = column < columns.h;
            return column_of<kChunkK>(
                of_h ? p.old_h : p.input,
                p.batch,
                of_h ? p.state_size : p.input_features,
                static_cast<int>(of_h ? column : column - columns.h) * kTileN + n,
                part(unit) * arguments.chunks_a_part + chunk);
          },
          finish);
    } else {
      product.run(shared, units, 0, arguments.chunks_a_part, load, finish);
    }
  }
#else
  trap_wrong_image();
#endif
}

struct WeightSumArguments {
  const float* parts;
  int count;
  int64_t size;
  float* d_weights;
};

constexpr int kSumThreads = 256;

/// d_weights = the sum of its parts, in order.
template <int kWidth>
__global__ void __launch_bounds__(kSumThreads)
    weight_sum_kernel(const __grid_constant__ WeightSumArguments arguments) {
  wait_for_previous_kernel();
  const int64_t index = (int64_t(blockIdx.x) * kSumThreads + threadIdx.x) * kWidth;
  if (index >= arguments.size) {
    return;
  }
  auto sum = read_vector<kWidth>(arguments.parts + index);
#pragma unroll 4
  for (int part = 1; part < arguments.count; ++part) {
    const auto more = read_vector<kWidth>(arguments.parts + part * arguments.size + index);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      sum.values[i] += more.values[i];
    }
  }
  write_global_vector(arguments.d_weights + index, sum);
}

template <int kWidth>
cudaError_t launch_weight_sum(const WeightSumArguments& arguments, cudaStream_t stream) {
  constexpr int64_t kElements = kSumThreads * kWidth;
  return launch_in_clusters<&weight_sum_kernel<kWidth>, kSumThreads>(
      arguments, dim3(static_cast<unsigned>(ceil_div(arguments.size, kElements))), 1, stream);
}

template <int kGroups, int kFeederGroups, int kStages, int kBlocksPerSm>
cudaError_t launch_float32_tile(const BackwardProblem& params,
                                const Float32GradientPlan& plan,
                                int split,
                                float* workspace,
                                cudaStream_t stream) {
  using StateProduct =
      ThreeTf32Product<Major::kK, Major::kOther, kGroups, kFeederGroups, kStages, kBlocksPerSm>;
  using WeightProduct =
      ThreeTf32Product<Major::kOther, Major::kOther, kGroups, kFeederGroups, kStages, kBlocksPerSm>;
  constexpr int kTileM = StateProduct::kTileM, kTileN = StateProduct::kTileN;
  constexpr int kChunkK = StateProduct::kChunkK;
  const auto tiles = [](int64_t n, int size) { return static_cast<unsigned>(tiles_of(n, size)); };
  const int64_t state = params.state_size, features = params.input_features;
  const int64_t gate_columns = 3 * state;
  Float32GradientArguments arguments{};
  arguments.cell = params;
  arguments.split = split_of_k(split, tiles_of(gate_columns, kChunkK), kTileM);
  arguments.state_columns = {params.d_old_h != nullptr ? tiles(state, kTileN) : 0,
                             params.d_input != nullptr ? tiles(features, kTileN) : 0};
  arguments.weight_columns = {params.d_weights != nullptr ? tiles(state, kTileN) : 0,
                              params.d_weights != nullptr ? tiles(features, kTileN) : 0};
  arguments.d_old_h_fours = state % 4 == 0;
  arguments.d_input_fours = features % 4 == 0;
  arguments.d_weights_pairs = state % 2 == 0 && features % 2 == 0;
  const auto ranks = static_cast<unsigned>(split);
  arguments.state_blocks = (arguments.state_columns.h + arguments.state_columns.input) *
                           tiles(params.batch, kTileM) * ranks;
  arguments.weight_tiles =
      (arguments.weight_columns.h + arguments.weight_columns.input) * tiles(gate_columns, kTileM);
  const int batch_chunks = tiles_of(params.batch, kChunkK);
  arguments.chunks_a_part = static_cast<int>(ceil_div(batch_chunks, plan.weight_parts));
  const int parts = static_cast<int>(ceil_div(batch_chunks, arguments.chunks_a_part));
  arguments.weight_parts = parts > 1 ? workspace : static_cast<float*>(params.d_weights);
  arguments.weight_units = arguments.weight_tiles * static_cast<unsigned>(parts);
  arguments.weight_units_a_block = static_cast<unsigned>(plan.weight_tiles_a_block);
  const unsigned weight_blocks = (arguments.weight_units + arguments.weight_units_a_block - 1) /
                                 arguments.weight_units_a_block;
  const unsigned blocks = (arguments.state_blocks + weight_blocks + ranks - 1) / ranks * ranks;
  if (blocks == 0) {
    return cudaSuccess;
  }
  const bool reads_b =
      !are_describable(params.input, params.weights, params.old_h, features, state, sizeof(float));
  bool done = true;
  // Operands whose K is not contiguous: right ones in boxes of kTileN columns of N, and the left
  // one of d_weights in boxes of 32 columns of M, swizzled.
  const auto describe_b = [&](CUtensorMap* map,
                              const Matrix& matrix,
                              int64_t rows,
                              int64_t columns) {
    return reads_b ||
           describe(
               map,
               {Arithmetic::kFloat32, matrix, rows, columns, kChunkK, kTileN, BoxLayout::kRows});
  };
  const Matrix d_gates{params.d_gates, params.d_gates_stride};
  const auto describe_d_gates = [&](CUtensorMap* map, int box_rows, int box_columns) {
    return describe(
        map, {Arithmetic::kFloat32, d_gates, params.batch, gate_columns, box_rows, box_columns});
  };
  if (arguments.state_blocks > 0) {
    const Matrix input_weights = params.weights.from(state, 4);
    done = describe_d_gates(&arguments.gate_rows, kTileM, kChunkK) &&
           describe_b(&arguments.weights_h, params.weights, gate_columns, state) &&
           describe_b(&arguments.weights_input, input_weights, gate_columns, features);
  }
  if (arguments.weight_units > 0) {
    done = done && describe_d_gates(&arguments.gate_columns, kChunkK, 32) &&
           describe_b(&arguments.old_h, params.old_h, params.batch, state) &&
           describe_b(&arguments.input, params.input, params.batch, features);
  }
  if (!done) {
    return cudaErrorInvalidValue;
  }
  static_assert(StateProduct::kSharedBytes == WeightProduct::kSharedBytes);
  const auto launch = [&]<bool kReadsB>() {
    return launch_in_clusters<&backward_wgmma_float32_kernel<StateProduct, WeightProduct, kReadsB>,
                              StateProduct::kThreads,
                              StateProduct::kSharedBytes,
                              ClusterSums<StateProduct>::kSharedBytes>(
        arguments, dim3(blocks), ranks, stream);
  };
  const cudaError_t error =
      reads_b ? launch.template operator()<true>() : launch.template operator()<false>();
  if (error != cudaSuccess || arguments.weight_units == 0 || parts == 1) {
    return error;
  }
  const WeightSumArguments sum{
      workspace, parts, gate_columns * (state + features), static_cast<float*>(params.d_weights)};
  return sum.size % 4 == 0 ? launch_weight_sum<4>(sum, stream) : launch_weight_sum<1>(sum, stream);
}

}  // namespace

int64_t backward_wgmma_float32_workspace(const BackwardProblem& params,
                                         const Float32GradientPlan& plan) {
  const int64_t matrix = 3 * params.state_size * (params.state_size + params.input_features);
  return params.d_weights == nullptr || plan.weight_parts == 1 ? 0 : plan.weight_parts * matrix;
}

cudaError_t launch_backward_wgmma_float32(const BackwardProblem& params,
                                          const Float32GradientPlan& plan,
                                          int split,
                                          float* workspace,
                                          cudaStream_t stream) {
  switch (plan.tile) {
    case Float32GradientTile::k64x96:
      return launch_float32_tile<1, 1, 2, 2>(params, plan, split, workspace, stream);
    case Float32GradientTile::k128x96:
      return launch_float32_tile<2, 2, 4, 1>(params, plan, split, workspace, stream);
    case Float32GradientTile::kCount:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace lltm::cuda
