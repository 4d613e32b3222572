// As gradient_tiles.cuh, in float32 without TF32 on Hopper, with the product of
// wgmma_three_tf32.cuh. The first weights are loaded and split into high and low parts by the time
// d_gates of the previous step are available.
#include "../../epilogue/math.cuh"
#include "../../epilogue/sequence_gradients.cuh"
#include "../../products/wgmma_three_tf32.cuh"
#include "../../ptx/bulk_copy.cuh"
#include "../../ptx/cluster.cuh"
#include "../../ptx/overlap.cuh"
#include "../../ptx/wgmma.cuh"
#include "../../reduction/cluster_sums.cuh"
#include "../../runtime/launch.cuh"
#include "../../runtime/tensor_maps.h"
#include "../../scheduler/split_of_k.h"
#include "kernels.h"

namespace lltm::cuda {
namespace {

struct Float32StepArguments {
  CUtensorMap d_gates;    // of all steps
  CUtensorMap weights_h;  // (3*state_size, state_size)
  SequenceGradientsParams<float> step;
  KSplit split;
  int column_tiles;
};

template <typename Product>
__global__ void __launch_bounds__(Product::kThreads, 1)
    sequence_gradient_wgmma_kernel(const __grid_constant__ Float32StepArguments arguments) {
#if defined(LLTM_HOPPER)
  using Epilogue = SequenceGradientsEpilogue<float, DeviceMath>;
  constexpr int kTileM = Product::kTileM, kTileN = Product::kTileN;
  extern __shared__ __align__(1024) unsigned char shared_stages[];
  const SequenceGradientsParams<float>& p = arguments.step;
  const int tile = static_cast<int>(cluster_index());
  const int first_column = tile % arguments.column_tiles * kTileN;
  const int first_row = tile / arguments.column_tiles * kTileM;
  // The map has the rows of all steps. Past a step's last row are those of another step, or none;
  // they are not used.
  const int first_map_row = static_cast<int>(p.last_t * p.rows) + first_row;
  Product::prepare(shared_stages);
  ClusterSums<Product> sums(shared_stages, arguments.split);
  // Their operands are fetched after the product, during which registers are few.
  StepFinisher<Epilogue, kTileN, Product::kThreads, /*kAtOnce=*/2> elements(
      Epilogue(p), first_row, first_column, sums.first_row(), sums.rows());
  elements.prefetch();
  __syncthreads();
  if (threadIdx.x < Product::kMultipliers) {
    wait_for_previous_kernel();
    start_next_kernel();
  }

  const int first_chunk = arguments.split.first_chunk(cluster_rank());
  const auto load_a = [&](uint32_t to, uint32_t barrier, int chunk) {
    const int k = (first_chunk + chunk) * Product::kChunkK;
    copy_box_2d(to, &arguments.d_gates, k, first_map_row, barrier);
  };
  const auto load_b = [&](uint32_t to, uint32_t barrier, int chunk) {
    const int k = (first_chunk + chunk) * Product::kChunkK;
    copy_box_2d(to, &arguments.weights_h, first_column, k, barrier);
  };
  Product product;
  product.run(shared_stages,
              arguments.split.first_chunk(cluster_rank() + 1) - first_chunk,
              /*early_chunks=*/0,
              /*early=*/true,
              load_a,
              load_b,
              [] {});
  wait_for_previous_kernel();  // by the threads that have not yet waited
  sums.exchange(product);
  elements.fetch();
  elements.fetch_carried();
  elements.finish(sums);
  sums.finish();
#else
  trap_wrong_image();
#endif
}

template <typename Product>
cudaError_t launch_tile(const SequenceGradientsParams<float>& params,
                        const Matrix& weights_h,
                        int split,
                        cudaStream_t stream) {
  const int64_t gate_columns = 3 * params.state_size;
  const int column_tiles = tiles_of(params.state_size, Product::kTileN);
  Float32StepArguments arguments{
      .d_gates = {},
      .weights_h = {},
      .step = params,
      .split = split_of_k(split, tiles_of(gate_columns, Product::kChunkK), Product::kTileM),
      .column_tiles = column_tiles};
  if (!describe(&arguments.d_gates,
                {.arithmetic = Arithmetic::kFloat32,
                 .matrix = {params.all_d_gates, params.d_gates_stride},
                 .rows = params.steps * params.rows,
                 .columns = gate_columns,
                 .box_rows = Product::kTileM,
                 .box_columns = Product::kChunkK}) ||
      !describe(&arguments.weights_h,
                {.arithmetic = Arithmetic::kFloat32,
                 .matrix = weights_h,
                 .rows = gate_columns,
                 .columns = params.state_size,
                 .box_rows = Product::kChunkK,
                 .box_columns = Product::kTileN})) {
    return cudaErrorInvalidValue;
  }
  const int64_t blocks = int64_t(tiles_of(params.rows, Product::kTileM)) * column_tiles * split;
  return launch_in_clusters<&sequence_gradient_wgmma_kernel<Product>,
                            Product::kThreads,
                            Product::kSharedBytes,
                            ClusterSums<Product>::kSharedBytes>(
      arguments, dim3(static_cast<unsigned>(blocks)), split, stream);
}

}  // namespace

cudaError_t launch_sequence_gradient_wgmma_float32(const SequenceGradientsParams<float>& params,
                                                   const Matrix& weights_h,
                                                   const TileShape& tile,
                                                   int split,
                                                   cudaStream_t stream) {
  return with_float32_gradient_product(tile.rows, [&]<typename Product>() {
    return launch_tile<Product>(params, weights_h, split, stream);
  });
}

}  // namespace lltm::cuda
