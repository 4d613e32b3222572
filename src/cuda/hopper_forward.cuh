// The forward in one launch for Hopper's own instructions (sm_90a): TMA brings the chunks of K,
// wgmma multiplies them. As fused_forward.cuh otherwise: the same hidden columns of all three gates
// in a block, K over old_h and then over input, shared by a cluster. Rows have to start at 16
// bytes.
#pragma once

#include "cell_finisher.cuh"
#include "hopper_instructions.cuh"
#include "launch_cluster.cuh"
#include "overlap.cuh"
#include "tensor_maps.h"
#include "tile_product.cuh"

namespace lltm::cuda {

struct HopperForwardArguments {
  CUtensorMap old_h, input;              // boxes of a tile's rows
  CUtensorMap weights_h, weights_input;  // boxes of 32 rows of each gate
  FusedForwardParams cell;
  KSplit split;
  int h_chunks;
};

/// What a block of kGroups times four warps, and one that starts the copies, does.
template <Arithmetic kArithmetic_, int kGroups_, int kStages_>
struct HopperProduct {
  static constexpr Arithmetic kArithmetic = kArithmetic_;
  static constexpr int kGroups = kGroups_, kStages = kStages_;
  using Element = typename ElementOf<kArithmetic>::type;
  static constexpr int kHidden = 32;
  static constexpr int kTileM = 64 * kGroups, kTileN = 3 * kHidden;
  static constexpr int kMultipliers = 128 * kGroups, kThreads = kMultipliers + 32;
  static constexpr int kChunkBytes = 128, kChunkK = kChunkBytes / sizeof(Element);
  static constexpr int kBytesA = kTileM * kChunkBytes, kBytesB = kTileN * kChunkBytes;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  static constexpr int kPitchC = kTileN + 8;
  static constexpr int kResultBytes = kTileM * kPitchC * 4;
  static constexpr int kBarrierOffset =
      kStages * kStageBytes > kResultBytes ? kStages* kStageBytes : kResultBytes;
  static constexpr int kSharedBytes = kBarrierOffset + kStages * 16;

  float sum[48];

  /// Leaves the tile in `result`, rows of kPitchC floats.
  __device__ __forceinline__ void store(float* result) const {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread >= kMultipliers) {
      return;
    }
    const int lane = thread % 32;
    float* const to = result + (thread / 32 * 16 + lane / 4) * kPitchC + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kTileN / 8; ++n) {
      *reinterpret_cast<float2*>(to + n * 8) = make_float2(sum[n * 4], sum[n * 4 + 1]);
      *reinterpret_cast<float2*>(to + 8 * kPitchC + n * 8) =
          make_float2(sum[n * 4 + 2], sum[n * 4 + 3]);
    }
  }
};

template <typename Product, int kBlocksPerSm>
__global__ void __launch_bounds__(Product::kThreads, kBlocksPerSm)
    hopper_forward_kernel(const __grid_constant__ HopperForwardArguments arguments) {
#if defined(LLTM_HOPPER)
  constexpr int kHidden = Product::kHidden, kStages = Product::kStages;
  extern __shared__ __align__(1024) unsigned char shared[];
  const FusedForwardParams& p = arguments.cell;
  const int64_t first_row =
      (blockIdx.y + int64_t(gridDim.y) * blockIdx.z) * int64_t(Product::kTileM);
  if (first_row >= p.batch) {
    return;
  }
  const int first_hidden = static_cast<int>(cluster_index()) * kHidden;
  const int begin = arguments.split.first_chunk(cluster_rank());
  const int end = arguments.split.first_chunk(cluster_rank() + 1);

  const uint32_t base = shared_address(shared);
  const auto full = [&](int slot) { return base + Product::kBarrierOffset + slot * 16; };
  const auto empty = [&](int slot) { return full(slot) + 8; };
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kStages; ++slot) {
      init_barrier(full(slot), 1);
      init_barrier(empty(slot), Product::kGroups);
    }
    fence_barriers();
  }
  ClusterSums<Product> sums(shared, arguments.split);
  CellFinisher<typename Product::Element, kHidden, Product::kThreads> finisher(
      p,
      {first_row,
       first_hidden,
       at_most(p.batch - first_row, Product::kTileM),
       at_most(p.state_size - first_hidden, kHidden)},
      sums.first_row(),
      sums.rows());
  __syncthreads();
  wait_for_previous_kernel();
  finisher.fetch();

  Product product;
  if (threadIdx.x >= Product::kMultipliers) {
    if (threadIdx.x == Product::kMultipliers) {
      prefetch_map(&arguments.old_h);
      prefetch_map(&arguments.weights_h);
      int slot = 0;
      uint32_t parity = 1;  // a fresh barrier has completed the phase before its first
      for (int chunk = begin; chunk < end; ++chunk) {
        wait_phase(empty(slot), parity);
        arrive_expecting(full(slot), Product::kStageBytes);
        const bool of_h = chunk < arguments.h_chunks;
        const int k = (of_h ? chunk : chunk - arguments.h_chunks) * Product::kChunkK;
        const uint32_t to = base + slot * Product::kStageBytes;
        copy_box_3d(to + Product::kBytesA,
                    of_h ? &arguments.weights_h : &arguments.weights_input,
                    k,
                    first_hidden,
                    0,
                    full(slot));
        copy_box_2d(to,
                    of_h ? &arguments.old_h : &arguments.input,
                    k,
                    static_cast<int>(first_row),
                    full(slot));
        if (++slot == kStages) {
          slot = 0;
          parity ^= 1;
        }
      }
    }
    __syncwarp();
  } else {
#pragma unroll
    for (float& value : product.sum) {
      value = 0;
    }
    const uint32_t rows = static_cast<uint32_t>(threadIdx.x) / 128 * 64 * Product::kChunkBytes;
    int slot = 0, previous = 0;
    uint32_t parity = 0;
    for (int chunk = begin; chunk < end; ++chunk) {
      wait_phase(full(slot), parity);
      const uint64_t a = describe_matrix(base + slot * Product::kStageBytes + rows);
      const uint64_t b = describe_matrix(base + slot * Product::kStageBytes + Product::kBytesA);
      fence_products();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        // 32 bytes further along K, in the descriptor's units of 16.
        if constexpr (Product::kArithmetic == Arithmetic::kTf32) {
          multiply_group_tf32(product.sum, a + step * 2, b + step * 2);
        } else if constexpr (Product::kArithmetic == Arithmetic::kFloat16) {
          multiply_group_f16(product.sum, a + step * 2, b + step * 2);
        } else {
          multiply_group_bf16(product.sum, a + step * 2, b + step * 2);
        }
      }
      commit_products();
      // One chunk's products stay under way while the next one's begin.
      wait_products<1>();
      if (chunk > begin && threadIdx.x % 128 == 0) {
        arrive(empty(previous));
      }
      previous = slot;
      if (++slot == kStages) {
        slot = 0;
        parity ^= 1;
      }
    }
    wait_products<0>();
  }
  // All products of all groups are done with the pipeline, which the sums replace.
  __syncthreads();
  sums.exchange(product);
  finisher.finish(sums);
  sums.finish();
#endif
}

template <Arithmetic kArithmetic, int kGroups, int kStages, int kBlocksPerSm>
cudaError_t launch_hopper_forward_tile(const FusedForwardParams& params,
                                       int split,
                                       cudaStream_t stream) {
  using Product = HopperProduct<kArithmetic, kGroups, kStages>;
  using Element = typename Product::Element;
  const auto chunks_of = [](int64_t k) {
    return static_cast<int>((k + Product::kChunkK - 1) / Product::kChunkK);
  };
  const int h_chunks = chunks_of(params.state_size);
  const int chunks = h_chunks + chunks_of(params.input_features);
  HopperForwardArguments arguments;
  arguments.cell = params;
  arguments.split = split_of_k(split, chunks, Product::kTileM);
  arguments.h_chunks = h_chunks;
  const auto rows = [&](CUtensorMap* map, const void* data, int64_t columns, int64_t stride) {
    return describe_rows(map,
                         kArithmetic,
                         data,
                         columns,
                         params.batch,
                         1,
                         stride,
                         Product::kChunkK,
                         Product::kTileM);
  };
  const auto gate_rows = [&](CUtensorMap* map, int64_t first_column, int64_t columns) {
    return describe_rows(map,
                         kArithmetic,
                         static_cast<const Element*>(params.weights) + first_column,
                         columns,
                         params.state_size,
                         3,
                         params.weights_stride,
                         Product::kChunkK,
                         Product::kHidden);
  };
  if (!rows(&arguments.old_h, params.old_h, params.state_size, params.old_h_stride) ||
      !rows(&arguments.input, params.input, params.input_features, params.input_stride) ||
      !gate_rows(&arguments.weights_h, 0, params.state_size) ||
      !gate_rows(&arguments.weights_input, params.state_size, params.input_features)) {
    return cudaErrorInvalidValue;
  }
  const int64_t groups = (params.state_size + Product::kHidden - 1) / Product::kHidden;
  const int64_t row_tiles = (params.batch + Product::kTileM - 1) / Product::kTileM;
  const int64_t y = row_tiles < kMaxGridY ? row_tiles : kMaxGridY;
  const dim3 grid(static_cast<unsigned>(groups * split),
                  static_cast<unsigned>(y),
                  static_cast<unsigned>((row_tiles + y - 1) / y));
  return launch_in_clusters<&hopper_forward_kernel<Product, kBlocksPerSm>,
                            Product::kThreads,
                            Product::kSharedBytes,
                            ClusterSums<Product>::kSharedBytes>(arguments, grid, split, stream);
}

template <Arithmetic kArithmetic>
cudaError_t launch_hopper_forward(const FusedForwardParams& params,
                                  HopperTile tile,
                                  int split,
                                  cudaStream_t stream) {
  switch (tile) {
    case HopperTile::k64x32:
      return launch_hopper_forward_tile<kArithmetic, 1, 4, 2>(params, split, stream);
    case HopperTile::k128x32:
      return launch_hopper_forward_tile<kArithmetic, 2, 5, 1>(params, split, stream);
    case HopperTile::kCount:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace lltm::cuda
