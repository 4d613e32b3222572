// Adds the sums of a tile of the gradients whose K a cluster shares, as wgmma leaves them: a thread
// has a float4 for each group of eight columns (sm_90a).
#pragma once

#include "../ptx/barrier.cuh"
#include "../ptx/bulk_copy.cuh"
#include "../ptx/cluster.cuh"
#include "../ptx/shared.cuh"
#include "../tile/shapes.h"
#include "../tile/vectors.cuh"

namespace lltm::cuda {

/// Of a cluster whose ranks, a power of two, share the K of a tile, each finishes as many
/// consecutive groups. Each block has kBytes of shared memory for the parts of its groups, in the
/// order of the ranks that send them, and a barrier that completes when all of these have arrived.
template <int kThreads, int kGroups>
struct GroupSums {
  static constexpr int kPartBytes = kThreads * 16;
  static constexpr int kBytes = kGroups * kPartBytes;
  static constexpr int kMostOwn = kGroups / 2;  // of several ranks

  unsigned char* parts;
  uint32_t barrier;
  int ranks, rank;

  /// The groups of a rank.
  LLTM_DEVICE int own() const { return kGroups >> (31 - __clz(ranks)); }

  /// One thread calls it, before all threads of the cluster arrive at its barrier.
  LLTM_DEVICE void prepare() const {
    init_barrier(barrier, 1);
    fence_barriers();
    arrive_expecting(barrier, (kGroups - own()) * kPartBytes);
  }

  /// Sends the other ranks their groups. Called once, by kThreads threads, after the wait for the
  /// cluster's barrier.
  LLTM_DEVICE void send(const float (&sum)[kGroups * 4]) const {
    const int thread = static_cast<int>(threadIdx.x), shift = 31 - __clz(own());
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int to = group >> shift, of_rank = group & (own() - 1);
      unsigned char* const part = parts + (of_rank * ranks + rank) * kPartBytes + thread * 16;
      const float4 four = four_of(sum + group * 4);
      if (to == rank) {
        *reinterpret_cast<float4*>(part) = four;
      } else {
        send_16(address_in_block(shared_address(part), to), four, address_in_block(barrier, to));
      }
    }
  }

  /// Then adds up the groups of this rank, in the order of the ranks, so that the result is the
  /// same on every run.
  LLTM_DEVICE void add_up(float4 (&totals)[kMostOwn]) const {
    const float4* const from = reinterpret_cast<const float4*>(parts) + threadIdx.x;
    wait_phase(barrier, 0);
#pragma unroll
    for (int group = 0; group < kMostOwn; ++group) {
      totals[group] = {};
      if (group < own()) {
        // All parts are read before the first is added.
        float4 part[kLargestCluster];
#pragma unroll
        for (int r = 0; r < kLargestCluster; ++r) {
          part[r] = from[(group * ranks + min(r, ranks - 1)) * kThreads];
        }
#pragma unroll
        for (int r = 0; r < kLargestCluster; ++r) {
          if (r < ranks) {
            add(totals[group], part[r]);
          }
        }
      }
    }
  }
};

}  // namespace lltm::cuda
