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

/// Of a cluster whose ranks, a power of two, share the K of a tile, rank r finishes the groups r,
/// r + ranks, .... Each block has kBytes of shared memory for the parts of its groups, in the order
/// of the ranks that send them, and a barrier that completes when all of these have arrived.
template <int kThreads, int kGroups>
struct GroupSums {
  static constexpr int kPartBytes = kThreads * 16;
  static constexpr int kBytes = kGroups * kPartBytes;

  unsigned char* parts;
  uint32_t barrier;
  int ranks, rank;

  /// One thread calls it, before all threads of the cluster arrive at its barrier.
  LLTM_DEVICE void prepare() const {
    init_barrier(barrier, 1);
    fence_barriers();
    arrive_expecting(barrier, (kGroups - (kGroups >> (31 - __clz(ranks)))) * kPartBytes);
  }

  /// Sends the other ranks their groups. Called once, by kThreads threads, after the wait for the
  /// cluster's barrier.
  LLTM_DEVICE void send(const float (&sum)[kGroups * 4]) const {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int to = group & (ranks - 1);
      unsigned char* const part = parts + (group - to + rank) * kPartBytes + thread * 16;
      const float4 own = four_of(sum + group * 4);
      if (to == rank) {
        *reinterpret_cast<float4*>(part) = own;
      } else {
        send_16(address_in_block(shared_address(part), to), own, address_in_block(barrier, to));
      }
    }
  }

  /// Then calls write(group, sums) for the groups of this rank. Parts are added in the order of the
  /// ranks, so the result is the same on every run.
  template <typename Write>
  LLTM_DEVICE void add_up(const Write& write) const {
    const float4* from = reinterpret_cast<const float4*>(parts) + threadIdx.x;
    wait_phase(barrier, 0);
#pragma unroll 1
    for (int group = rank; group < kGroups; group += ranks) {
      // All parts are read before the first is added.
      float4 part[kLargestCluster];
#pragma unroll
      for (int r = 0; r < kLargestCluster; ++r) {
        part[r] = from[min(r, ranks - 1) * kThreads];
      }
      float4 total{};
#pragma unroll
      for (int r = 0; r < kLargestCluster; ++r) {
        if (r < ranks) {
          add(total, part[r]);
        }
      }
      write(group, total);
      from += ranks * kThreads;
    }
  }
};

}  // namespace lltm::cuda
