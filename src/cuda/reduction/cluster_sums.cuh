// Adds the partial sums of a tile whose K is split across a cluster.
#pragma once

#include "../ptx/barrier.cuh"
#include "../ptx/bulk_copy.cuh"
#include "../ptx/cluster.cuh"
#include "../ptx/shared.cuh"
#include "../scheduler/split_of_k.h"
#include "../tile/shapes.h"

namespace lltm::cuda {

/// The sums of a tile whose K is split across a cluster. Every rank sends the other ranks the rows
/// that they finish. Shared memory holds Product's, where the block's own sums replace the
/// pipeline; the received rows; and a barrier that completes when all of them have arrived.
template <typename Product>
class ClusterSums {
 public:
  // kTileM rows, and up to one more per rank from rounding up to whole rows.
  static constexpr int kBarrierOffset =
      Product::kSharedBytes + (Product::kTileM + kLargestCluster) * Product::kPitchC * 4;
  static constexpr int kSharedBytes = kBarrierOffset + 16;

  LLTM_DEVICE ClusterSums(unsigned char* shared, const KSplit& split)
      : own_(reinterpret_cast<float*>(shared)),
        received_(reinterpret_cast<float*>(shared + Product::kSharedBytes)),
        barrier_(shared_address(shared + kBarrierOffset)),
        ranks_(split.ranks),
        rank_(cluster_rank()),
        rows_a_rank_(split.rows_a_rank) {
    if (ranks_ > 1) {
      if (threadIdx.x == 0) {
        init_barrier(barrier_, 1);
        fence_barriers();
        arrive_expecting(barrier_, (ranks_ - 1) * rows() * kRowBytes);
      }
      __syncwarp();
      cluster_arrive();
    }
  }

  /// The rows of the tile that this rank finishes.
  LLTM_DEVICE int first_row() const { return first_row_of(rank_); }
  LLTM_DEVICE int rows() const { return rows_of(rank_); }

  /// Called after the product. Afterwards the sums of this rank's rows, from all ranks, can be
  /// read.
  LLTM_DEVICE void exchange(Product& product) {
    product.store(own_);
    if (ranks_ == 1) {
      __syncthreads();
      return;
    }
    fence_for_copies();
    __syncthreads();
    cluster_wait();
    const int to = static_cast<int>(threadIdx.x);
    if (to < ranks_ && to != rank_ && rows_of(to) > 0) {
      copy_to_rank(shared_address(received_) + rank_ * rows_a_rank_ * kRowBytes,
                   shared_address(own_) + first_row_of(to) * kRowBytes,
                   rows_of(to) * kRowBytes,
                   barrier_,
                   to);
    }
    wait_phase(barrier_, 0);
    // Once all ranks have arrived here, no block reads another's shared memory.
    cluster_arrive();
  }

  /// Reads kCount sums, kStep columns apart, from (row, column) on, where row counts from
  /// first_row(). Parts are added in rank order, so the result is the same on every run.
  template <int kCount, int kStep>
  LLTM_DEVICE void read(float (&sums)[kCount], int row, int column) const {
    const float* const own = own_ + (first_row() + row) * Product::kPitchC + column;
    const float* const received = received_ + row * Product::kPitchC + column;
    const float* part = rank_ == 0 ? own : received;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      sums[i] = part[i * kStep];
    }
#pragma unroll
    for (int r = 1; r < kLargestCluster; ++r) {
      if (r < ranks_) {
        part = r == rank_ ? own : received + r * rows_a_rank_ * Product::kPitchC;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          sums[i] += part[i * kStep];
        }
      }
    }
  }

  /// Called before the block exits.
  LLTM_DEVICE void finish() const {
    if (ranks_ > 1) {
      cluster_wait();
    }
  }

 private:
  static constexpr int kRowBytes = Product::kPitchC * 4;

  LLTM_DEVICE int first_row_of(int rank) const { return min(rank * rows_a_rank_, Product::kTileM); }
  LLTM_DEVICE int rows_of(int rank) const {
    return min(Product::kTileM - first_row_of(rank), rows_a_rank_);
  }

  float* own_;
  float* received_;
  uint32_t barrier_;
  int ranks_, rank_, rows_a_rank_;
};

}  // namespace lltm::cuda
