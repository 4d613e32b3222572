// The products of a small backward in 16 bits on Hopper (sm_90a), in one launch of many small
// blocks. d_old_h and d_input are tiles of 64x64 of d_gates @ weights, whose K a cluster shares.
// d_weights are tiles of 64x128 of d_gates.T @ [old_h, input]. Rows must start at multiples of 16
// bytes.
//
// Most of the time is spent waiting, so as much as possible is done before d_gates are available:
// blocks start while the kernel that computes d_gates runs, and copy the other operands.
#include "../../epilogue/gradient_tile.cuh"
#include "../../problem.h"
#include "../../products/wgmma_gradients.cuh"
#include "../../ptx/barrier.cuh"
#include "../../ptx/bulk_copy.cuh"
#include "../../ptx/cluster.cuh"
#include "../../ptx/overlap.cuh"
#include "../../ptx/shared.cuh"
#include "../../ptx/wgmma.cuh"
#include "../../reduction/group_sums.cuh"
#include "../../runtime/launch.cuh"
#include "../../runtime/tensor_maps.h"
#include "../../scheduler/split_of_k.h"
#include "../../tile/elements.h"
#include "../../tile/shapes.h"
#include "../../tile/vectors.cuh"
#include "kernels.h"

namespace lltm::cuda {
namespace {

constexpr int kBoxSize = 64, kBoxBytes = kHalfBoxBytes;

struct BackwardMaps {
  CUtensorMap d_gates, weights_h, weights_input, old_h, input;
  CUtensorMap d_weights_h, d_weights_input;
};

/// Creates the tensor maps, except those of matrices that are not wanted or empty. Returns false if
/// TMA cannot describe one.
bool describe_backward(BackwardMaps* maps, Arithmetic arithmetic, const BackwardProblem& p) {
  const int64_t state = p.state_size, features = p.input_features, gates = 3 * state;
  const int64_t width = state + features;
  const auto describe_part = [&](CUtensorMap* map, Matrix part, int64_t rows, int64_t columns) {
    return describe(map, {arithmetic, part, rows, columns, kBoxSize, kBoxSize});
  };
  const Matrix d_weights{p.d_weights, width};
  return describe_part(&maps->d_gates, {p.d_gates, p.d_gates_stride}, p.batch, gates) &&
         describe_part(&maps->weights_h, p.weights, gates, state) &&
         describe_part(&maps->weights_input, p.weights_input, gates, features) &&
         describe_part(&maps->old_h, p.old_h, p.batch, state) &&
         describe_part(&maps->input, p.input, p.batch, features) &&
         describe_part(&maps->d_weights_h, d_weights, gates, state) &&
         describe_part(&maps->d_weights_input, d_weights.from(state, 2), gates, features);
}

struct SmallBackwardArguments {
  BackwardMaps maps;
  BackwardProblem cell;
  KSplit split;
  Segments state_columns, weight_columns;  // in tiles
  int state_blocks;                        // of the tiles of d_old_h and d_input, ranks included
  int weight_tiles, weight_chunks;
};

struct SmallGradientTile {
  static constexpr int kThreads = 128, kBlocksPerSm = 3;
  static constexpr int kRows = 64, kStateColumns = 64, kWeightColumns = 128;
  // The boxes in flight, two or three per chunk of K. Behind them, in a tile whose K is shared, the
  // sums of all ranks that this one adds; in a tile of d_weights, the result.
  static constexpr int kPipelineBoxes = 6;
  static constexpr int kMaxStages = kPipelineBoxes / 2;
  static constexpr int kPartsOffset = kPipelineBoxes * kBoxBytes;
  using Sums = GroupSums<kThreads, kStateColumns / 8>;
  static_assert(Sums::kBytes >= 2 * kBoxBytes);
  static constexpr int kBarrierOffset = kPartsOffset + Sums::kBytes;
  static constexpr int kSharedBytes = kBarrierOffset + (kMaxStages + 1) * 8;
};

#if defined(LLTM_HOPPER)
// Computes the sums of a tile of 64 rows: of d_gates.T @ [old_h, input] or d_gates @ weights.
template <Arithmetic kArithmetic, bool kOfWeights, int kSums>
__device__ __forceinline__ void multiply_small_tile(float (&sum)[kSums],
                                                    uint32_t base,
                                                    const CUtensorMap* d_gates,
                                                    const CUtensorMap* right,
                                                    int row,
                                                    int column,
                                                    int first_chunk,
                                                    int chunks) {
  constexpr int kBoxesB = kSums / 32;
  constexpr int kStages = SmallGradientTile::kPipelineBoxes / (1 + kBoxesB);
  constexpr int kStageBytes = (1 + kBoxesB) * kBoxBytes;
  const auto full = [&](int slot) { return base + SmallGradientTile::kBarrierOffset + slot * 8; };
  const auto copy_right = [&](int chunk, int slot) {
    arrive_expecting(full(slot), kStageBytes);
#pragma unroll
    for (int box = 0; box < kBoxesB; ++box) {
      copy_box_2d(base + slot * kStageBytes + (1 + box) * kBoxBytes,
                  right,
                  column + box * kBoxSize,
                  (first_chunk + chunk) * kBoxSize,
                  full(slot));
    }
  };
  const auto copy_d_gates = [&](int chunk, int slot) {
    const int k = (first_chunk + chunk) * kBoxSize;
    copy_box_2d(
        base + slot * kStageBytes, d_gates, kOfWeights ? row : k, kOfWeights ? k : row, full(slot));
  };
  const int lead = min(chunks, kStages);
  if (threadIdx.x == 0) {
    // The previous kernel, that of d_gates, starts this one only after its own wait. So all kernels
    // before that one are complete, and the other operands are available.
    for (int i = 0; i < lead; ++i) {
      copy_right(i, i);
    }
    wait_for_previous_kernel();
    for (int i = 0; i < lead; ++i) {
      copy_d_gates(i, i);
    }
  }
  __syncwarp();
  clear(sum);
  int slot = 0, previous = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    wait_phase(full(slot), parity);
    const uint32_t a = base + slot * kStageBytes;
    fence_products();
    multiply_boxes<kArithmetic, kOfWeights, true>(
        sum, describe_boxes<kOfWeights>(a), describe_boxes<true>(a + kBoxBytes));
    commit_products();
    // The products of one chunk stay in flight while those of the next one start.
    wait_products<1>();
    const int next = chunk - 1 + kStages;
    if (chunk > 0 && next < chunks) {
      __syncthreads();
      if (threadIdx.x == 0) {
        copy_right(next, previous);
        copy_d_gates(next, previous);
      }
      __syncwarp();
    }
    previous = slot;
    if (++slot == kStages) {
      slot = 0;
      parity ^= 1;
    }
  }
  wait_products<0>();
  keep_behind(sum);
}
#endif

template <Arithmetic kArithmetic>
__global__ void __launch_bounds__(SmallGradientTile::kThreads, SmallGradientTile::kBlocksPerSm)
    backward_wgmma_small_kernel(const __grid_constant__ SmallBackwardArguments arguments) {
#if defined(LLTM_HOPPER)
  using Tile = SmallGradientTile;
  using Element = TensorElement<kArithmetic>;
  using Staging = GradientStaging<HalfGradientProduct<kArithmetic>>;
  static_assert(Staging::kBytes == kBoxBytes && Staging::kColumns == kBoxSize);
  extern __shared__ __align__(1024) unsigned char shared[];
  const BackwardProblem& p = arguments.cell;
  const BackwardMaps& maps = arguments.maps;
  const int thread = static_cast<int>(threadIdx.x);
  const uint32_t base = shared_address(shared);
  const int rank = cluster_rank();
  const typename Tile::Sums sums{shared + Tile::kPartsOffset,
                                 base + Tile::kBarrierOffset + Tile::kMaxStages * 8,
                                 arguments.split.ranks,
                                 rank};
  const bool of_weights = static_cast<int>(blockIdx.x) >= arguments.state_blocks;
  if (thread == 0) {
    prefetch_map(&maps.d_gates);
    for (int slot = 0; slot < Tile::kMaxStages; ++slot) {
      init_barrier(base + Tile::kBarrierOffset + slot * 8, 1);
    }
    sums.prepare();
  }
  __syncthreads();
  start_next_kernel();

  if (of_weights) {
    const int tile = static_cast<int>(blockIdx.x) - arguments.state_blocks;
    if (tile >= arguments.weight_tiles) {
      return;
    }
    const int tiles_a_row = arguments.weight_columns.pieces();
    const auto [of_h, first] =
        arguments.weight_columns.piece(tile % tiles_a_row, Tile::kWeightColumns);
    const int row = tile / tiles_a_row * Tile::kRows, column = static_cast<int>(first);
    float sum[Tile::kWeightColumns / 2];
    multiply_small_tile<kArithmetic, true>(sum,
                                           base,
                                           &maps.d_gates,
                                           of_h ? &maps.old_h : &maps.input,
                                           row,
                                           column,
                                           0,
                                           arguments.weight_chunks);
#pragma unroll
    for (int i = 0; i < Tile::kWeightColumns / 8; ++i) {
      const int column_of_box = i * 8 % Staging::kColumns, box = i * 8 / Staging::kColumns;
      Staging(shared + Tile::kPartsOffset + box * kBoxBytes)
          .put(/*of_weights=*/true, column_of_box, four_of(sum + i * 4));
    }
    fence_for_copies();
    __syncthreads();
    if (thread == 0) {
#pragma unroll
      for (int box = 0; box < 2; ++box) {
        write_box_2d(base + Tile::kPartsOffset + box * kBoxBytes,
                     of_h ? &maps.d_weights_h : &maps.d_weights_input,
                     column + box * kBoxSize,
                     row);
      }
      commit_writes();
      wait_writes();
    }
    return;
  }

  cluster_arrive();  // the barriers of all ranks are initialized
  const int tile = static_cast<int>(cluster_index());
  const int tiles_a_row = arguments.state_columns.pieces();
  const auto [of_h, first] = arguments.state_columns.piece(tile % tiles_a_row, Tile::kStateColumns);
  const int first_row = tile / tiles_a_row * Tile::kRows, first_column = static_cast<int>(first);
  const int first_chunk = arguments.split.first_chunk(rank);
  float sum[Tile::kStateColumns / 2];
  multiply_small_tile<kArithmetic, false>(sum,
                                          base,
                                          &maps.d_gates,
                                          of_h ? &maps.weights_h : &maps.weights_input,
                                          first_row,
                                          first_column,
                                          first_chunk,
                                          arguments.split.first_chunk(rank + 1) - first_chunk);
  cluster_wait();
  sums.send(sum);
  const int64_t width = of_h ? p.state_size : p.input_features;
  const int64_t row = first_row + thread / 32 * 16 + thread % 32 / 4;
  int64_t column = first_column + rank * 8 + thread % 4 * 2;
  Element* result = static_cast<Element*>(of_h ? p.d_old_h : p.d_input) + row * width + column;
  sums.add_up([&](int, float4 of_group) {
    const float values[2][2] = {{of_group.x, of_group.y}, {of_group.z, of_group.w}};
    if (column < width) {  // width is even
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        if (row + below * 8 < p.batch) {
          const Vector<Element, 2> two{static_cast<Element>(values[below][0]),
                                       static_cast<Element>(values[below][1])};
          write_global_vector(result + below * 8 * width, two);
        }
      }
    }
    column += sums.ranks * 8;
    result += sums.ranks * 8;
  });
#else
  trap_wrong_image();
#endif
}

}  // namespace

template <Arithmetic kArithmetic>
cudaError_t launch_backward_wgmma_small(const BackwardProblem& p, int split, cudaStream_t stream) {
  using Tile = SmallGradientTile;
  SmallBackwardArguments arguments{};
  if (!describe_backward(&arguments.maps, kArithmetic, p)) {
    return cudaErrorInvalidValue;
  }
  const int64_t gates = 3 * p.state_size;
  arguments.cell = p;
  arguments.split = split_of_k(split, tiles_of(gates, kBoxSize), 0);
  const auto columns = [&](const void* h, const void* input, int tile) {
    return segments_of(
        h != nullptr ? p.state_size : 0, input != nullptr ? p.input_features : 0, tile);
  };
  arguments.state_columns = columns(p.d_old_h, p.d_input, Tile::kStateColumns);
  arguments.weight_columns = columns(p.d_weights, p.d_weights, Tile::kWeightColumns);
  arguments.state_blocks =
      arguments.state_columns.pieces() * tiles_of(p.batch, Tile::kRows) * split;
  arguments.weight_tiles = arguments.weight_columns.pieces() * tiles_of(gates, Tile::kRows);
  arguments.weight_chunks = tiles_of(p.batch, kBoxSize);
  const int blocks =
      arguments.state_blocks + static_cast<int>(ceil_div(arguments.weight_tiles, split)) * split;
  if (blocks == 0) {
    return cudaSuccess;
  }
  return launch_in_clusters<&backward_wgmma_small_kernel<kArithmetic>,
                            Tile::kThreads,
                            Tile::kSharedBytes>(
      arguments, dim3(static_cast<unsigned>(blocks)), static_cast<unsigned>(split), stream);
}

template cudaError_t launch_backward_wgmma_small<Arithmetic::kFloat16>(const BackwardProblem&,
                                                                       int,
                                                                       cudaStream_t);
template cudaError_t launch_backward_wgmma_small<Arithmetic::kBFloat16>(const BackwardProblem&,
                                                                        int,
                                                                        cudaStream_t);

}  // namespace lltm::cuda
