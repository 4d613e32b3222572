// As gradient_tiles.cuh, on Hopper (sm_90a), with the products and the way to finish them of
// forward/wgmma.cuh: wgmma reads W_h, which all steps share, from a transposed copy, along K. The
// first weights are loaded, and in float32 split into high and low parts, by the time d_gates of
// the previous step are available.
#pragma once

#include "../../../cell/combined.h"
#include "../../../cell/lltm.h"
#include "../../../cell/lstm.h"
#include "../../epilogue/fragment_finisher.cuh"
#include "../../epilogue/math.cuh"
#include "../../epilogue/sequence_gradients.cuh"
#include "../../products/hopper.cuh"
#include "../../ptx/barrier.cuh"
#include "../../ptx/bulk_copy.cuh"
#include "../../ptx/cluster.cuh"
#include "../../ptx/overlap.cuh"
#include "../../ptx/shared.cuh"
#include "../../ptx/wgmma.cuh"
#include "../../runtime/dispatch.h"
#include "../../runtime/launch.cuh"
#include "../../runtime/tensor_maps.h"
#include "../../scheduler/split_of_k.h"
#include "../meet_blocks.cuh"
#include "kernels.h"

namespace lltm::cuda {

template <typename Element>
struct SequenceGradientWgmmaArguments {
  CUtensorMap d_gates;  // of all steps
  CUtensorMap weights;  // (state_size, gates*state_size)
  SequenceGradientsParams<Element> step;
  KSplit split;
  int bytes_a;                            // of A that arrive per chunk
  int first_chunk_of_zeros, zero_chunks;  // of weights, which are left out
};

/// Starts the copies of a block's chunks: boxes of d_gates to A, and of weights to B. The ranks of
/// a cluster take the chunks of K in turn.
template <typename Product, bool kHasZeros>
class SequenceGradientLoader {
 public:
  using Arguments = SequenceGradientWgmmaArguments<typename Product::Element>;

  LLTM_DEVICE explicit SequenceGradientLoader(const Arguments& arguments)
      : arguments_(arguments),
        ranks_(arguments.split.ranks),
        rank_(cluster_rank()),
        first_row_(static_cast<int>((blockIdx.y + int64_t(gridDim.y) * blockIdx.z) *
                                    int64_t(Product::kTileM))),
        first_column_(static_cast<int>(cluster_index()) * Product::kTileN),
        chunks_(arguments.split.first_chunk(rank_ + 1) - arguments.split.first_chunk(rank_)) {}

  LLTM_DEVICE int ranks() const { return ranks_; }
  LLTM_DEVICE int rank() const { return rank_; }
  LLTM_DEVICE int first_row() const { return first_row_; }
  LLTM_DEVICE int first_column() const { return first_column_; }
  LLTM_DEVICE int chunks() const { return chunks_; }

  /// Copies one operand of a chunk, which counts from zero within the rank. The map of A has the
  /// rows of all steps. Past a step's last row are those of another step, or none; they are not
  /// used.
  LLTM_DEVICE void load_a(uint32_t to, uint32_t barrier, int chunk) const {
    const SequenceGradientsParams<typename Product::Element>& p = arguments_.step;
    const int row = static_cast<int>(p.last_t * p.rows) + first_row_;
    copy_box_2d(to, &arguments_.d_gates, k_of(chunk), row, barrier);
  }
  LLTM_DEVICE void load_b(uint32_t to, uint32_t barrier, int chunk) const {
    copy_box_2d(to, &arguments_.weights, k_of(chunk), first_column_, barrier);
  }

  /// Copies all chunks to the slots of a ring. Called by all threads that may load: one copies A,
  /// once the previous kernel is complete, and one B.
  template <typename Slots>
  LLTM_DEVICE void load_all(Slots slots) const {
    const bool of_a = threadIdx.x == Product::kFinishers;
    if (!of_a && threadIdx.x != Product::kFinishers + 32) {
      return;
    }
    if (of_a) {
      wait_for_previous_kernel();
    }
#pragma unroll 1
    for (int chunk = 0; chunk < chunks_; ++chunk) {
      if (chunk >= Product::kStages) {
        slots.wait_empty();
      }
      arrive_expecting(slots.full(), of_a ? arguments_.bytes_a : Product::kBytesB);
      if (of_a) {
        load_a(slots.data(), slots.full(), chunk);
      } else {
        load_b(slots.data() + Product::kBytesA, slots.full(), chunk);
      }
      slots.advance();
    }
  }

 private:
  LLTM_DEVICE int k_of(int chunk) const {
    int of_all = rank_ + chunk * ranks_;
    if (kHasZeros && of_all >= arguments_.first_chunk_of_zeros) {
      of_all += arguments_.zero_chunks;
    }
    return of_all * Product::kChunkK;
  }

  const Arguments& arguments_;
  const int ranks_, rank_, first_row_, first_column_, chunks_;
};

/// Whether blocks of two steps share a multiprocessor: the next one loads its weights meanwhile. In
/// TF32, these loads would slow down those of the step before.
template <typename Product>
constexpr bool kMeetsNextStep =
    FragmentMemory<Product>::kFitsTwice && sizeof(typename Product::Element) == 2;

template <typename Cell, typename Product, bool kAtOnce>
__global__ void __launch_bounds__(Product::kThreads, kMeetsNextStep<Product> ? 2 : 1)
    sequence_gradient_wgmma_kernel(
        const __grid_constant__ SequenceGradientWgmmaArguments<typename Product::Element>
            arguments) {
#if defined(LLTM_HOPPER)
  using Memory = FragmentMemory<Product>;
  using Math = std::
      conditional_t<Product::kArithmetic == Arithmetic::kFloat32, DeviceMath, ShortRoundedMath>;
  using Epilogue = SequenceGradientFours<typename Product::Element, Math, Cell, kAtOnce>;
  using Finisher =
      FragmentFinisher<Epilogue, 4 * Product::kGroups, Product::kTileN, Product::kFinishers>;
  constexpr bool kFloat32 = Product::kArithmetic == Arithmetic::kFloat32;
  extern __shared__ __align__(1024) unsigned char shared[];
  const SequenceGradientLoader<Product, cell::kCountOfX<Cell> != 0> loader(arguments);
  const int rank = loader.rank(), ranks = loader.ranks();
  if (loader.first_row() >= arguments.step.rows) {
    return;  // as does the whole cluster
  }
  const uint32_t sums_barrier = shared_address(shared + Memory::kSumsBarrier);
  Finisher finisher(
      Epilogue(arguments.step), loader.first_row(), loader.first_column(), rank, ranks);
  Product::prepare(shared);
  if (threadIdx.x == 0) {
    finisher.prepare_barrier(sums_barrier);
    prefetch_map(&arguments.d_gates);
    prefetch_map(&arguments.weights);
  }
  meet_blocks<Product, !kFloat32>(ranks);

  // While the previous step runs, what no step writes is read, and computed from.
  const auto begin = [&] {
    finisher.prefetch();
    if constexpr (!kFloat32) {
      finisher.fetch();
      finisher.prepare();
    }
    wait_for_previous_kernel();
    start_next_kernel();
  };
  unsigned char* const parts = shared + (ranks == 1 ? 0 : Memory::kPartsOffset);
  Product product;
  const auto finish = [&] {
    finisher.template finish<Product::kMultipliers>(
        product.sum, parts, sums_barrier, [&](int to) { return cluster_rank() + to - rank; });
  };
  const auto fetch = [&] {
    if constexpr (kFloat32) {
      finisher.fetch();
    } else {
      begin();
    }
    finisher.fetch_carried();
  };
  if (kFloat32 && threadIdx.x < Product::kMultipliers) {
    begin();
  }
  product.run(
      shared, {.chunks = loader.chunks(), .early_chunks = 0, .early = true}, loader, fetch, finish);
#else
  trap_wrong_image();
#endif
}

template <typename Cell, typename Product, bool kAtOnce>
cudaError_t launch_sequence_gradient_product(
    const SequenceGradientsParams<typename Product::Element>& params,
    const Matrix& weights,
    int ranks,
    cudaStream_t stream) {
  using Memory = FragmentMemory<Product>;
  if (ranks > Memory::kMaxRanks) {
    return cudaErrorInvalidValue;
  }
  constexpr Arithmetic kArithmetic = Product::kArithmetic;
  const int64_t gate_columns = Cell::kGates * params.state_size;
  const int zero_chunks =
      chunks_of_zeros(cell::kCountOfX<Cell>, params.state_size, Product::kChunkK);
  const int chunks = tiles_of(gate_columns, Product::kChunkK) - zero_chunks;
  const int rows = Product::box_rows(params.rows);
  SequenceGradientWgmmaArguments<typename Product::Element> arguments{
      .d_gates = {},
      .weights = {},
      .step = params,
      .split = split_of_k(ranks, chunks, Product::kTileM),
      .bytes_a = rows * 128,
      .first_chunk_of_zeros = tiles_of(cell::kFirstOfX<Cell> * params.state_size, Product::kChunkK),
      .zero_chunks = zero_chunks};
  if (!describe(&arguments.d_gates,
                {.arithmetic = kArithmetic,
                 .matrix = {params.all_d_gates, params.d_gates_stride},
                 .rows = params.steps * params.rows,
                 .columns = gate_columns,
                 .box_rows = rows,
                 .box_columns = Product::kChunkK}) ||
      !describe(&arguments.weights,
                {.arithmetic = kArithmetic,
                 .matrix = weights,
                 .rows = params.state_size,
                 .columns = gate_columns,
                 .box_rows = Product::kTileN,
                 .box_columns = Product::kChunkK})) {
    return cudaErrorInvalidValue;
  }
  const dim3 grid = grid_of_tiles(
      tiles_of(params.rows, Product::kTileM), tiles_of(params.state_size, Product::kTileN), ranks);
  // With so much shared memory, no two blocks fit a multiprocessor together. If steps meet, the
  // blocks of the first one get it, and those that follow find one place on each.
  constexpr int kAloneBytes = std::max(Memory::kAloneBytes, Memory::kClusterBytes);
  const bool alone = !kMeetsNextStep<Product> || !params.follows_a_product;
  return launch_in_clusters<&sequence_gradient_wgmma_kernel<Cell, Product, kAtOnce>,
                            Product::kThreads,
                            Memory::kBlockBytes,
                            Memory::kClusterBytes,
                            kAloneBytes>(arguments, grid, ranks, stream, alone ? kAloneBytes : 0);
}

// Steps of any state_size have tiles of 64 rows and at least as many columns, multiples of four
// have all of them.
inline constexpr WgmmaTile kSequenceGradientFloat32Tiles[] = {
    {.shape = {64, 96}, .stages = 5},
    {.shape = {128, 96}, .stages = 4},
};
inline constexpr WgmmaTile kSequenceGradientTiles[] = {
    {.shape = {64, 32}, .stages = 8},
    {.shape = {64, 64}, .stages = 5},
    {.shape = {128, 64}, .stages = 7},
};

template <typename Cell, Arithmetic kArithmetic>
cudaError_t launch_sequence_gradient_wgmma(
    const SequenceGradientsParams<TensorElement<kArithmetic>>& params,
    const Matrix& weights,
    const TileShape& shape,
    int ranks,
    cudaStream_t stream) {
  const auto launch = [&](auto tile) {
    using Product =
        typename HopperProduct<kArithmetic, tile, /*kSumsAColumn=*/1, /*kOverlaps=*/true>::Type;
    if (params.state_size % 4 == 0) {
      return launch_sequence_gradient_product<Cell, Product, true>(params, weights, ranks, stream);
    }
    if constexpr (Product::kTileM == 64 && Product::kTileN >= 64) {
      return launch_sequence_gradient_product<Cell, Product, false>(params, weights, ranks, stream);
    } else {
      return cudaErrorInvalidValue;
    }
  };
  if constexpr (kArithmetic == Arithmetic::kFloat32) {
    return dispatch<kSequenceGradientFloat32Tiles>(shape, launch);
  } else {
    return dispatch<kSequenceGradientTiles>(shape, launch);
  }
}

}  // namespace lltm::cuda
