// z_x in float32 without TF32 on Hopper, by the product of wgmma_three_tf32.cuh: about three times
// as fast as the library's, which uses the CUDA cores. Blocks stay, and load the next tile while
// they write one.
#include "../../products/wgmma_three_tf32.cuh"
#include "../../ptx/bulk_copy.cuh"
#include "../../ptx/overlap.cuh"
#include "../../runtime/launch.cuh"
#include "../../runtime/tensor_maps.h"
#include "../../tile/vectors.cuh"
#include "recurrence.h"

#include <algorithm>

namespace lltm::cuda {
namespace {

struct InputProductArguments {
  CUtensorMap input, weights;
  Float32InputProduct problem;
  int64_t column_tiles, tiles;
  int chunks;  // of K
};

/// A tile of z_x.
struct InputProductUnit {
  int row, column;
  int first_chunk, chunks;  // of K
};

/// Adds the bias to a thread's sums, which are pairs of neighbors.
template <int kSums>
LLTM_DEVICE void add_bias(float (&sum)[kSums], const Float32InputProduct& p, int64_t first_column) {
  if (p.bias == nullptr) {
    return;
  }
#pragma unroll
  for (int i = 0; i < kSums; i += 4) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (const int64_t column = first_column + 2 * i + j; column < p.columns) {
        const float bias = p.bias[column * p.bias_stride];
        sum[i + j] += bias;
        sum[i + 2 + j] += bias;
      }
    }
  }
}

/// Writes a thread's pairs of a row, of which `columns` columns exist from `to` on, at multiples of
/// 8 bytes: where the row starts between two, from its second element on, with the next thread's
/// first. `half` is 0, or 1 for the row below. All threads of a warp call it.
template <int kSums>
LLTM_DEVICE void write_pairs(float* to, int64_t columns, const float (&sum)[kSums], int half) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int next = lane / 4 * 4 + (lane + 1) % 4;
  const bool shifts = reinterpret_cast<uintptr_t>(to) % 8 != 0;
  if (shifts && lane % 4 == 0 && columns > 0) {
    to[0] = sum[2 * half];
  }
#pragma unroll
  for (int i = 0; i < kSums; i += 4) {
    const float* const own = sum + i + 2 * half;
    // What follows the last lane's pair is the first lane's next one.
    const int of_next = min(i + 4, kSums - 4) + 2 * half;
    const float sent = lane % 4 == 0 ? sum[of_next] : own[0];
    const float following = __shfl_sync(~0u, sent, next);
    const int64_t left = columns - 2 * i - (shifts ? 1 : 0);
    const Vector<float, 2> pair{shifts ? own[1] : own[0], shifts ? following : own[1]};
    float* const first = to + 2 * i + (shifts ? 1 : 0);
    if (left > 1) {
      write_vector(first, pair);
    } else if (left > 0) {
      first[0] = pair.values[0];
    }
  }
}

template <typename Product>
__global__ void __launch_bounds__(Product::kThreads, 1)
    input_product_wgmma_kernel(const __grid_constant__ InputProductArguments arguments) {
#if defined(LLTM_HOPPER)
  extern __shared__ __align__(1024) unsigned char shared_stages[];
  const Float32InputProduct& p = arguments.problem;
  Product::prepare(shared_stages);
  if (threadIdx.x == 0) {
    prefetch_map(&arguments.input);
    prefetch_map(&arguments.weights);
  }
  __syncthreads();
  wait_for_previous_kernel();
  start_next_kernel();

  const int chunks = arguments.chunks;
  // Blocks that run at the same time have tiles of the same rows.
  const auto each_unit = [&](const auto& work) {
    for (int64_t tile = blockIdx.x; tile < arguments.tiles; tile += gridDim.x) {
      const int64_t row_tile = tile / arguments.column_tiles;
      work(InputProductUnit{
          static_cast<int>(row_tile * Product::kTileM),
          static_cast<int>((tile - row_tile * arguments.column_tiles) * Product::kTileN),
          0,
          chunks});
    }
  };
  Product product;
  product.run_units(
      shared_stages,
      each_unit,
      [](const InputProductUnit&) { return false; },
      [&](uint32_t a, uint32_t b, uint32_t barrier, const InputProductUnit& unit, int chunk) {
        const int k = chunk * Product::kChunkK;
        arrive_expecting(barrier, Product::kBytesA + Product::kBytesB);
        copy_box_2d(b, &arguments.weights, k, unit.column, barrier);
        copy_box_2d(a, &arguments.input, k, unit.row, barrier);
      },
      [](const InputProductUnit&, int n) { return n; },
      [&](const InputProductUnit& unit) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const int warp = static_cast<int>(threadIdx.x) / 32;
        const int64_t first_column = unit.column + lane % 4 * 2;
        // Those of the tile that exist.
        const int64_t columns =
            min(p.columns - first_column, int64_t{Product::kTileN} - lane % 4 * 2);
        add_bias(product.sum, p, first_column);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t row =
              unit.row + Product::template row_of<Major::kK>(warp, lane / 4 + half * 8);
          write_pairs(p.z_x + row * p.columns + first_column,
                      row < p.rows ? columns : 0,
                      product.sum,
                      half);
        }
      });
#else
  trap_wrong_image();
#endif
}

template <typename Product>
cudaError_t launch_tile(const Float32InputProduct& p, int multiprocessors, cudaStream_t stream) {
  const int64_t column_tiles = ceil_div(p.columns, Product::kTileN);
  InputProductArguments arguments{.input = {},
                                  .weights = {},
                                  .problem = p,
                                  .column_tiles = column_tiles,
                                  .tiles = ceil_div(p.rows, Product::kTileM) * column_tiles,
                                  .chunks = tiles_of(p.input_features, Product::kChunkK)};
  const auto describe_rows = [&](CUtensorMap* map, const Matrix& matrix, int64_t rows, int box) {
    return describe(map,
                    {Arithmetic::kFloat32, matrix, rows, p.input_features, box, Product::kChunkK});
  };
  if (!describe_rows(&arguments.input, p.input, p.rows, Product::kTileM) ||
      !describe_rows(&arguments.weights, p.weights, p.columns, Product::kTileN)) {
    return cudaErrorInvalidValue;
  }
  const int64_t blocks = std::min<int64_t>(arguments.tiles, multiprocessors);
  return launch_in_clusters<&input_product_wgmma_kernel<Product>,
                            Product::kThreads,
                            Product::kPipelineBytes>(arguments, grid_of(blocks), 1, stream);
}

}  // namespace

cudaError_t launch_input_product_wgmma_float32(const Float32InputProduct& problem,
                                               int tile_rows,
                                               int multiprocessors,
                                               cudaStream_t stream) {
  // With as many stages as fit.
  using Small = ThreeTf32Product<Major::kK, 1, 1, 6>;
  using Large = ThreeTf32Product<Major::kK, 2, 2, 5>;
  return tile_rows == Small::kTileM ? launch_tile<Small>(problem, multiprocessors, stream)
                                    : launch_tile<Large>(problem, multiprocessors, stream);
}

}  // namespace lltm::cuda
