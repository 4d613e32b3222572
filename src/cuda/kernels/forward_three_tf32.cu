// The forward in one launch in float32 without TF32, on Hopper: as forward_tiles.cuh, with
// wgmma_three_tf32.cuh's product. Rows have to start at 16 bytes.
#include "../epilogue/cell_of_fragments.cuh"
#include "../epilogue/math.cuh"
#include "../problem.h"
#include "../products/major.h"
#include "../products/wgmma_three_tf32.cuh"
#include "../ptx/barrier.cuh"
#include "../ptx/bulk_copy.cuh"
#include "../ptx/cluster.cuh"
#include "../ptx/overlap.cuh"
#include "../ptx/shared.cuh"
#include "../ptx/wgmma.cuh"
#include "../runtime/launch.cuh"
#include "../runtime/tensor_maps.h"
#include "../scheduler/split_of_k.h"
#include "../scheduler/tiles.h"
#include "forward_kernels.h"

namespace lltm::cuda {
namespace {

struct ForwardThreeTf32Arguments {
  ForwardMaps maps;
  ForwardProblem cell;
  KSplit split;
  Segments chunks;  // of K
};

/// The product, and behind it, where K is shared, the sums of all ranks.
template <int kGroups, int kHidden_, int kFeederGroups, int kStages>
struct ThreeTf32TileOf {
  static constexpr int kHidden = kHidden_;
  using Product =
      ThreeTf32Product<Major::kK, Major::kK, kGroups, kFeederGroups, kStages, 1, 3 * kHidden>;
  static constexpr int kTileM = Product::kTileM;
  static constexpr int kUnits = kTileM / 4;
  static constexpr int kSumsBarrier = Product::kPipelineBytes;
  static constexpr int kPartsOffset = kSumsBarrier + 128;
  static constexpr int kBlockBytes = kPartsOffset;
  static constexpr int kClusterBytes =
      kPartsOffset + (kUnits + kMaxSplit - 1) * unit_bytes(kHidden);
  static_assert(kUnits * unit_bytes(kHidden) <= Product::kPipelineBytes &&
                kClusterBytes <= 227 * 1024);
};

template <typename Tile>
__global__ void __launch_bounds__(Tile::Product::kThreads, 1)
    forward_three_tf32_kernel(const __grid_constant__ ForwardThreeTf32Arguments arguments) {
#if defined(LLTM_HOPPER)
  using Product = typename Tile::Product;
  extern __shared__ __align__(1024) unsigned char shared[];
  const ForwardProblem& p = arguments.cell;
  const int64_t first_row = (blockIdx.y + int64_t(gridDim.y) * blockIdx.z) * int64_t(Tile::kTileM);
  if (first_row >= p.batch) {
    return;
  }
  const int first_hidden = static_cast<int>(cluster_index()) * Tile::kHidden;
  const int rank = cluster_rank(), ranks = arguments.split.ranks;
  FragmentFinisher<float, DeviceMath, 4 * Product::kGroups, Tile::kHidden, Product::kMultipliers>
      finisher(p, first_row, first_hidden, rank, ranks);
  const uint32_t sums_barrier = shared_address(shared + Tile::kSumsBarrier);
  Product::prepare(shared);
  if (threadIdx.x == 0) {
    init_barrier(sums_barrier, 1 + finisher.own_arrivals());
    fence_barriers();
    arrive_expecting(sums_barrier, finisher.expected_bytes());
  }
  __syncwarp();
  if (ranks > 1) {
    cluster_arrive();
    cluster_wait();
  } else {
    __syncthreads();
  }
  start_next_kernel();
  wait_for_previous_kernel();

  const auto load = [&](uint32_t a, uint32_t b, uint32_t barrier, int, int chunk) {
    const auto piece = arguments.chunks.piece(chunk, Product::kChunkK);
    const int k = static_cast<int>(piece.first);
    copy_box_3d(b,
                &piece.of(arguments.maps.weights_h, arguments.maps.weights_input),
                k,
                first_hidden,
                0,
                barrier);
    copy_box_2d(a,
                &piece.of(arguments.maps.old_h, arguments.maps.input),
                k,
                static_cast<int>(first_row),
                barrier);
  };
  Product product;
  const auto finish = [&](int) {
    finisher.fetch();
    unsigned char* const parts = shared + (ranks == 1 ? 0 : Tile::kPartsOffset);
    if (ranks == 1) {
      // All groups are done with the stages, which the sums replace.
      sync_threads_of<2, Product::kMultipliers>();
    }
    finisher.exchange(product.sum, parts, sums_barrier, [](int to) { return to; });
    wait_phase(sums_barrier, 0);
    finisher.finish(parts);
  };
  product.run(shared,
              1,
              arguments.split.first_chunk(rank),
              arguments.split.first_chunk(rank + 1),
              load,
              finish);
#endif
}

template <typename Tile>
cudaError_t launch_forward_three_tf32_tile(const ForwardProblem& params,
                                           int split,
                                           cudaStream_t stream) {
  using Product = typename Tile::Product;
  constexpr int kHidden = Tile::kHidden;
  ForwardThreeTf32Arguments arguments;
  arguments.cell = params;
  arguments.chunks = segments_of(params.state_size, params.input_features, Product::kChunkK);
  arguments.split = split_of_k(split, arguments.chunks.pieces(), Product::kTileM);
  if (!describe_forward(&arguments.maps,
                        Arithmetic::kFloat32,
                        params,
                        Product::kChunkK,
                        Product::kTileM,
                        kHidden)) {
    return cudaErrorInvalidValue;
  }
  const dim3 grid = grid_of_tiles((params.batch + Product::kTileM - 1) / Product::kTileM,
                                  (params.state_size + kHidden - 1) / kHidden,
                                  split);
  return launch_in_clusters<&forward_three_tf32_kernel<Tile>,
                            Product::kThreads,
                            Tile::kBlockBytes,
                            Tile::kClusterBytes>(arguments, grid, split, stream);
}

}  // namespace

cudaError_t launch_forward_three_tf32(const ForwardProblem& params,
                                      ThreeTf32Tile tile,
                                      int split,
                                      cudaStream_t stream) {
  switch (tile) {
    case ThreeTf32Tile::k64x8:
      // With so many stages that one block fits a multiprocessor: those of the next launch spread.
      return launch_forward_three_tf32_tile<ThreeTf32TileOf<1, 8, 1, 8>>(params, split, stream);
    case ThreeTf32Tile::k64x32:
      return launch_forward_three_tf32_tile<ThreeTf32TileOf<1, 32, 1, 5>>(params, split, stream);
    case ThreeTf32Tile::k128x32:
      return launch_forward_three_tf32_tile<ThreeTf32TileOf<2, 32, 2, 4>>(params, split, stream);
    case ThreeTf32Tile::kCount:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace lltm::cuda
