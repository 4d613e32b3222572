// Adds the sums of a tile of the gradients whose K a cluster shares (sm_90a).
#pragma once

#include "../epilogue/gradient_tile.cuh"
#include "../ptx/cluster.cuh"

namespace lltm::cuda {

/// Adds the sums of a tile whose K the cluster shares, and writes this rank's share of its columns:
/// a power of two of groups of eight.
template <typename Tile, int kColumns>
__device__ __forceinline__ void exchange_gradient_tile(const GradientResults& results,
                                                       unsigned char* shared,
                                                       const GradientUnit& unit,
                                                       int ranks,
                                                       int rank,
                                                       const float (&sum)[kColumns / 2]) {
  using Staging = typename Tile::Staging;
  constexpr int kGroups = kColumns / 8, kMaxGroups = kGroups / 2;  // of a rank
  static_assert(kGroups == 8);
  const int thread = static_cast<int>(threadIdx.x), group = thread / 128;
  const int shift = 4 - __ffs(ranks), groups = 1 << shift;
  const uint32_t barrier = shared_address(shared + Tile::kExchangeBarrier);
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const int to = i >> shift;
    // What a rank receives is in the order of the ranks that sent it.
    const int offset = Tile::kStagingOffset +
                       (rank * groups + (i & (groups - 1))) * Tile::kPartBytes + thread * 16;
    const float* const s = sum + i * 4;
    if (to == rank) {
      *reinterpret_cast<float4*>(shared + offset) = four_of(s);
    } else {
      send_16(address_in_block(shared_address(shared + offset), to),
              four_of(s),
              address_in_block(barrier, to));
    }
  }
  float4 total[kMaxGroups] = {};
  const unsigned char* from = shared + Tile::kStagingOffset + thread * 16;
  wait_phase(barrier, 0);
#pragma unroll 2
  for (int r = 0; r < ranks; ++r) {
#pragma unroll
    for (int i = 0; i < kMaxGroups; ++i) {
      if (i < groups) {
        const float4 part = *reinterpret_cast<const float4*>(from + i * Tile::kPartBytes);
        add(total[i], part);
      }
    }
    from += groups * Tile::kPartBytes;
  }
  sync_threads_of<kGradientThreads>(3);  // all have read what is overwritten here
  // This rank's columns, at least eight, start at the beginning of a block.
  const int first = rank * groups * 8;
  const Staging staging(shared + Tile::kStagingOffset + group * Tile::kGroupStagingBytes);
#pragma unroll
  for (int i = 0; i < kMaxGroups; ++i) {
    if (i < groups) {
      staging.put(unit.of_weights, i * 8, total[i]);
    }
  }
  sync_threads_of<128>(1 + group);
  staging.write(results, unit, unit.row + group * 64, 0, groups * 8, first);
}

}  // namespace lltm::cuda
