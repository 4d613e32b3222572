// What precedes a launch of the recurrence across the grid: a small kernel that writes the weights
// as the threads take them to registers, with zeros where they do not exist, and empties all slots.
#pragma once

#include "../../ptx/mma.cuh"
#include "../../ptx/overlap.cuh"
#include "../../ptx/packed.cuh"
#include "../../runtime/launch.cuh"
#include "exchange.cuh"
#include "product.cuh"

#include <algorithm>
#include <cstdint>

namespace lltm::cuda {

template <typename Element>
struct GridPreparation {
  RecurrentWeights<Element> weights;
  int64_t rows, state_size;
  int gates;
  GridTile tile;
  int granules_of_warp, row_tiles_of_weights;
  Steps<Element> h0;
  GridWorkspace workspace;
  int64_t slot_vectors;  // of 16 bytes
  // What the blocks of the grid do, in this order: some pack 8 rows of weights, or a part of their
  // granules, others find the scales of h0, and all others empty slots.
  int packs, parts, scales;
};

/// The greatest magnitude of a row of `count` elements, as bits, by a warp.
template <typename Element>
LLTM_DEVICE uint32_t greatest_bits(const Element* row, int64_t stride, int count) {
  uint32_t greatest = 0;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < count; i += 32) {
    greatest = max(greatest, __float_as_uint(static_cast<float>(row[i * stride])) & 0x7fffffffu);
  }
  return __reduce_max_sync(~0u, greatest);
}

constexpr int kPrepareThreads = 256;

template <Arithmetic kArithmetic, bool kBackward>
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_grid_kernel(const __grid_constant__ GridPreparation<TensorElement<kArithmetic>> p) {
  using Element = TensorElement<kArithmetic>;
  constexpr bool kScaled = is_float(kArithmetic) && !kBackward;
  constexpr int kWarps = kPrepareThreads / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int size = static_cast<int>(p.state_size);
  wait_for_previous_kernel();
  int block = static_cast<int>(blockIdx.x);
  if (block >= p.packs) {
    block -= p.packs;
    if (block < p.scales) {
      const int64_t row = int64_t{block} * kWarps + warp;
      if (row < p.rows) {
        const uint32_t greatest = greatest_bits(&p.h0.at(0, row, 0), p.h0.strides[2], size);
        if (lane == 0) {
          p.workspace.of_h0[row] = scale_of(greatest, true);
        }
      }
      return;
    }
    const int64_t threads = int64_t{gridDim.x - p.packs - p.scales} * kPrepareThreads;
    auto* const slots = reinterpret_cast<uint4*>(p.workspace.slots);
    for (int64_t i = int64_t{block - p.scales} * kPrepareThreads + threadIdx.x; i < p.slot_vectors;
         i += threads) {
      slots[i] = make_uint4(kEmptyWord, kEmptyWord, kEmptyWord, kEmptyWord);
    }
    return;
  }

  // Rows of weights as the product has them: those of a unit and, in the forward, a gate.
  const int part = block % p.parts, gates = kBackward ? 1 : p.gates;
  const int gate = block / p.parts % gates, unit = block / p.parts / gates;
  const int row = lane / 4, column = 8 * unit + row;
  const int64_t row_stride = p.weights.strides[0], column_stride = p.weights.strides[1];
  float scale = 1;
  if constexpr (kScaled) {
    __shared__ float scales[8];
    uint32_t greatest = 0;
    const int column_of_warp = 8 * unit + warp;
    if (column_of_warp < size) {
      greatest = greatest_bits(p.weights.data + (gate * p.state_size + column_of_warp) * row_stride,
                               column_stride,
                               size);
      if (lane == 0) {
        p.workspace.of_weights[gate * size + column_of_warp] = scale_of(greatest, true);
      }
    }
    if (lane == 0) {
      scales[warp] = scale_of(greatest, false);
    }
    __syncthreads();
    scale = scales[row];
  }

  const int units = p.tile.units, own_units = units / p.tile.unit_groups;
  const int block_of_team = unit / units, unit_group = unit % units / own_units;
  const int row_block = unit % own_units * gates + gate;
  const int all_granules = p.granules_of_warp * p.tile.shares();
  for (int granule = part * kWarps + warp; granule < all_granules; granule += p.parts * kWarps) {
    constexpr int kVector =
        kBackward ? columns_of_run(kArithmetic) : granule_columns(kArithmetic) / 4;
    const int run = 4 * granule + lane % 4;
    // The first of the neighbors in K, and where it is.
    const int first = kBackward ? run / p.gates * kVector : run * kVector;
    const Element* const from =
        p.weights.data +
        (kBackward ? (run % p.gates * p.state_size + first) * row_stride + column * column_stride
                   : (gate * p.state_size + column) * row_stride + first * column_stride);
    const int64_t stride = kBackward ? row_stride : column_stride;
    float values[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      values[i] = column < size && first + i < size ? static_cast<float>(from[i * stride]) : 0.0f;
      values[i] *= scale;
    }
    uint4 packed;
    if constexpr (kVector == 4 && !kBackward) {
      packed = make_uint4(Packed<c10::Half>::pack(values[0], values[1]),
                          Packed<c10::Half>::pack(values[2], values[3]),
                          Packed<c10::Half>::pack(low_part(values[0]), low_part(values[1])),
                          Packed<c10::Half>::pack(low_part(values[2]), low_part(values[3])));
    } else if constexpr (kVector == 4) {
      const auto word = [&](int i) {
        return kArithmetic == Arithmetic::kTf32 ? round_to_tf32(values[i])
                                                : bits_to_split(values[i]);
      };
      packed = make_uint4(word(0), word(1), word(2), word(3));
    } else {
      using Operand =
          std::conditional_t<kArithmetic == Arithmetic::kBFloat16, c10::BFloat16, c10::Half>;
      packed = make_uint4(Packed<Operand>::pack(values[0], values[1]),
                          Packed<Operand>::pack(values[2], values[3]),
                          Packed<Operand>::pack(values[4], values[5]),
                          Packed<Operand>::pack(values[6], values[7]));
    }
    const int warp_of_block = granule / p.granules_of_warp * p.tile.unit_groups + unit_group;
    const int64_t to =
        ((int64_t{block_of_team} * p.tile.warps + warp_of_block) * p.granules_of_warp +
         granule % p.granules_of_warp) *
            p.row_tiles_of_weights +
        row_block / 2;
    p.workspace.weights[(2 * to + row_block % 2) * 32 + lane] = packed;
  }
}

/// Prepares a launch. h0 has null data if it is zeros, and in the backward.
template <Arithmetic kArithmetic, bool kBackward, typename Problem>
cudaError_t prepare_grid(const Problem& problem,
                         const GridTile& tile,
                         int gates,
                         const Steps<TensorElement<kArithmetic>>& h0,
                         bool has_weights,
                         cudaStream_t stream) {
  constexpr int kWarps = kPrepareThreads / 32;
  const GridSizes sizes(tile, gates, kArithmetic, kBackward);
  GridPreparation<TensorElement<kArithmetic>> of{
      .weights = problem.weights,
      .rows = problem.rows,
      .state_size = problem.state_size,
      .gates = gates,
      .tile = tile,
      .granules_of_warp = sizes.granules_of_warp(tile),
      .row_tiles_of_weights = sizes.row_tiles_of_weights,
      .h0 = h0,
      .workspace = problem.workspace,
      .slot_vectors = kGridSlots * problem.grid.teams *
                      sizes.slot_bytes_of_team(tile, problem.grid.groups) / 16,
      .packs = 0,
      .parts = kBackward ? 4 : 1,
      .scales = 0,
  };
  if (!has_weights) {
    of.packs = problem.grid.blocks * tile.units * (kBackward ? 1 : gates) * of.parts;
  }
  if (is_float(kArithmetic) && h0.data != nullptr) {
    of.scales = static_cast<int>(ceil_div(problem.rows, kWarps));
  }
  const int64_t empties = std::min<int64_t>(ceil_div(of.slot_vectors, kPrepareThreads), 256);
  return launch_in_clusters<&prepare_grid_kernel<kArithmetic, kBackward>, kPrepareThreads>(
      of, grid_of(of.packs + of.scales + empties), 1, stream);
}

}  // namespace lltm::cuda
